"""What the benchmarks say a step has to compute and read, against counting it out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.engine_steps import Share, packed_bytes, work_of
from headway.executors.torch import LoadedModel
from headway.executors.torch.loader import QuantizedModel

Packed = Callable[..., LoadedModel]


@pytest.mark.parametrize("shares", [[Share(5, 0, True)], [Share(3, 4, False), Share(1, 9, True), Share(6, 0, True)]])
def test_work_is_what_row_after_row_adds_up_to(shares: list[Share], packed: Packed) -> None:
    """Every product of every row, every key that a query sees, every token whose keys are read."""
    model = packed("llama")
    spec = model.spec
    per_layer = {
        "qkv": spec.hidden_size * (spec.q_size + 2 * spec.kv_size),
        "output": spec.q_size * spec.hidden_size,
        "gate, up": 2 * spec.hidden_size * spec.intermediate_size,
        "down": spec.intermediate_size * spec.hidden_size,
    }
    products = attention = read = written = 0
    for share in shares:
        read += share.first_position
        for row in range(share.num_tokens):
            written += 1
            is_sampled = share.samples and row == share.num_tokens - 1
            for layer in range(spec.num_layers):
                goes_on = layer < spec.num_layers - 1 or is_sampled
                products += sum(per_layer.values()) if goes_on else per_layer["qkv"]
                attention += 2 * spec.q_size * (share.first_position + row + 1) if goes_on else 0
            products += spec.hidden_size * spec.vocab_size if is_sampled else 0
    work = work_of(model, shares)
    assert work.product_ops == 2 * products
    assert work.attention_ops == 2 * attention
    assert work.kv_bytes == (read + written) * model.kv_bytes_per_token


def test_weights_are_read_only_as_far_as_rows_go(packed: Packed) -> None:
    """All of them if a row is sampled; otherwise neither the head nor what the last layer does behind its keys."""
    model = packed("llama")
    assert isinstance(model.arithmetic, QuantizedModel)
    struct = model.arithmetic.weights.model
    layers = [struct.layers[index] for index in range(model.spec.num_layers)]
    of_layer = [[packed_bytes(m) for m in (one.qkv, one.output, one.gate_up, one.down)] for one in layers]
    everything = sum(map(sum, of_layer)) + packed_bytes(struct.head)
    assert work_of(model, [Share(4, 0, True)]).weight_bytes == everything
    skipped = packed_bytes(struct.head) + sum(of_layer[-1][1:])
    assert work_of(model, [Share(4, 0, False)]).weight_bytes == everything - skipped
