"""The int8 forward pass: close to exact arithmetic, and the same to the bit however the work is cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headway.core.sampling import SamplingParams
from headway.errors import ConfigError
from headway.executors.torch import LoadedModel, load
from headway.executors.torch.batch import RequestRows, build_batch
from headway.executors.torch.kv_cache import PagedKVCache
from headway.executors.torch.model import TorchDecoder
from tests.torch_executor.native.support import NativeRunner, fake_quantized, isas_here, relative_error
from tests.torch_executor.support import output_ids, random_ids, serve
from tests.torch_executor.tiny_models import CONFIGS, VOCAB_SIZE, TinyModel

Models = Callable[[str], TinyModel]
Packed = Callable[..., LoadedModel]

ROUNDING = 0.03
"""Relative: where a value lies between two bytes, rounding in another order decides which one it becomes."""
NO_FLIP = 1e-5
"""Relative, of a row in which no value was that close to the middle."""
LOSS = 0.2
"""Relative to exact arithmetic. These models have large weights without structure, the worst there is for bytes."""


def _reference(model: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits at all positions in the int8 arithmetic of `support`, by torch."""
    spec = model.spec
    cache = PagedKVCache(
        spec.num_layers, 50, 16, spec.num_kv_heads, spec.head_dim, device=model.device, dtype=torch.float32
    )
    rows = [RequestRows(token_ids, 0, np.arange(1, 1 + -(-len(token_ids) // 16)), len(token_ids))]
    with torch.inference_mode():
        batch = build_batch(rows, cache, spec.num_heads, set(spec.layer_windows))
        return TorchDecoder(spec, fake_quantized(model.weights)).forward(batch, cache)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_computes_what_int8_means(
    name: str, loaded: Callable[[str], LoadedModel], packed: Packed, tiny: Models
) -> None:
    """Near the same arithmetic in torch, and not far from transformers' exact logits."""
    token_ids = random_ids(300, VOCAB_SIZE)
    ours = NativeRunner(packed(name, None, "float32")).logits(token_ids)
    reference, exact = _reference(loaded(name), token_ids), tiny(name).logits(token_ids)
    assert relative_error(ours, reference) < ROUNDING
    by_row = (ours - reference).norm(dim=1) / reference.norm(dim=1)
    assert (by_row < NO_FLIP).sum() >= 10, "hardly any row is the same"
    assert relative_error(ours, exact) < LOSS
    assert relative_error(ours, exact) == pytest.approx(relative_error(reference, exact), rel=0.02)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kv_cache_dtype", ["float16", "float32"])
def test_chunks_change_no_bit(name: str, kv_cache_dtype: str, packed: Packed) -> None:
    """Whole, and in chunks of 1, 7, 16, 50 and 129: few rows and many, which are shared out in different ways."""
    runner = NativeRunner(packed(name, None, kv_cache_dtype))
    token_ids = random_ids(200, VOCAB_SIZE)
    whole = runner.logits(token_ids)
    for chunk in (1, 7, 16, 50, 129):
        assert torch.equal(runner.logits(token_ids, chunk=chunk), whole), f"chunks of {chunk}"


@pytest.mark.parametrize("name", ["llama", "llama-bias-tied", "qwen3", "mistral-sliding", "qwen2-some-layers-slide"])
def test_a_mixed_batch_equals_single_runs(name: str, packed: Packed) -> None:
    """32 requests of mixed lengths in one step, some wanting logits and some the best token: to the bit."""
    runner = NativeRunner(packed(name), num_blocks=600)
    requests, logits, best = [], [], []
    for i in range(32):
        length = (3, 17, 40, 75, 130)[i % 5] + i
        num_rows = (length, 1, 5, 20, 1)[i % 5]
        token_ids = random_ids(length, VOCAB_SIZE, seed=i)
        alone = runner.logits(token_ids)[-min(num_rows, 4) :]
        table = runner.table(length)
        start = length - num_rows
        if start:
            runner.logits(token_ids[:start], table=table)
        wants = i % 2 == 0
        requests.append(RequestRows(token_ids[start:], start, np.array(table), min(num_rows, 4), i % 3, wants))
        if wants:
            logits.append(alone)
        else:
            best += alone.argmax(-1).tolist()
    scores = runner.run(requests)
    assert torch.equal(scores.logits, torch.cat(logits))
    assert list(scores.best_token_ids) == best


@pytest.mark.parametrize("name", ["llama-llama3-rope", "mistral-sliding"])
def test_a_cached_prefix_equals_a_cold_run(name: str, packed: Packed) -> None:
    """Two requests share their first four blocks; the second computes only what follows."""
    runner = NativeRunner(packed(name))
    prefix = random_ids(64, VOCAB_SIZE)
    first, second = prefix + random_ids(30, VOCAB_SIZE, seed=1), prefix + random_ids(45, VOCAB_SIZE, seed=2)
    table = runner.table(len(first))
    runner.logits(first, table=table)
    cold = runner.logits(second)[64:]
    assert torch.equal(runner.logits(second, table=runner.table(len(second), shared=table[:4]), start=64), cold)


def test_a_block_may_be_filled_and_shared_in_the_same_step(packed: Packed) -> None:
    """A request admitted in the step that computes its cached prefix reads what the other row writes there."""
    runner = NativeRunner(packed("llama"))
    prefix = random_ids(32, VOCAB_SIZE)
    first, second = [*prefix, 3], prefix + random_ids(20, VOCAB_SIZE, seed=2)
    expected = torch.cat([runner.logits(second)[32:], runner.logits(first)[-1:]])
    table = runner.table(len(first))
    shared = runner.table(len(second), shared=table[:2])
    rows = [RequestRows(second[32:], 32, np.array(shared), 20), RequestRows(first, 0, np.array(table), 1)]
    assert torch.equal(runner.run(rows).logits, expected)


@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_blocks_of_others_are_never_read(name: str, packed: Packed) -> None:
    """NaN in every block but those that the queries see changes nothing; a window's old blocks included."""
    runner = NativeRunner(packed(name), num_blocks=60)
    token_ids = random_ids(90, VOCAB_SIZE)
    expected = runner.logits(token_ids)[-1:]
    table = runner.table(90)
    runner.logits(token_ids[:-1], table=table)
    window = packed(name).spec.sliding_window
    seen = table if window is None else table[(90 - window) // 16 :]
    for layer in runner.forward.cache.layers:
        kept = layer[seen].clone()
        layer.fill_(float("nan"))
        layer[seen] = kept
    assert torch.equal(runner.run([RequestRows(token_ids[-1:], 89, np.array(table), 1)]).logits, expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral-sliding"])
def test_instruction_sets_and_threads_change_no_bit(name: str, tiny: Models, packed: Packed) -> None:
    """Every version of the kernels, and one or three threads."""
    token_ids = random_ids(150, VOCAB_SIZE)
    results = [NativeRunner(packed(name, isa)).logits(token_ids, chunk=60) for isa in isas_here()]
    torch.set_num_threads(3)
    try:
        threaded = load(tiny(name).folder, device="cpu", quantization="int8")
    finally:
        torch.set_num_threads(1)
    results.append(NativeRunner(threaded).logits(token_ids, chunk=60))
    results.append(NativeRunner(threaded).logits(token_ids, chunk=9))
    assert all(torch.equal(result, results[0]) for result in results)


def test_half_precision_keys_lose_little(packed: Packed) -> None:
    """float16 and float32 KV differ, and by less than int8 loses."""
    token_ids = random_ids(300, VOCAB_SIZE)
    half, single = (NativeRunner(packed("llama", None, kind)).logits(token_ids) for kind in ("float16", "float32"))
    assert 0 < relative_error(half, single) < LOSS / 2


def test_block_sizes(packed: Packed) -> None:
    """Multiples of 16 give the same bits; others are refused with a size to use instead."""
    token_ids = random_ids(100, VOCAB_SIZE)
    sizes = [NativeRunner(packed("llama"), block_size=size).logits(token_ids, chunk=23) for size in (16, 32, 64)]
    assert all(torch.equal(result, sizes[0]) for result in sizes)
    with pytest.raises(ConfigError, match="--block-size 32"):
        packed("llama").forward_pass(10, 24)


def test_the_engine_generates_the_same_alone_and_in_a_crowd(packed: Packed) -> None:
    """Greedy and seeded requests through the real scheduler, under preemption, and with asynchronous scheduling."""
    model = packed("llama")
    prompts = [random_ids(5 + 7 * i, VOCAB_SIZE, seed=i) for i in range(12)]
    sampling = [SamplingParams(temperature=0.9 * (i % 2), seed=i, max_tokens=20 + i) for i in range(12)]
    alone = [output_ids(serve(model, [p], s)[0][0]) for p, s in zip(prompts, sampling, strict=True)]
    for settings in ({}, {"num_blocks": 30}, {"async_scheduling": True}, {"policy": "static"}):
        requests, _, engine = serve(model, prompts, sampling, max_num_batched_tokens=64, **settings)
        assert [output_ids(request) for request in requests] == alone, settings
        assert ("num_blocks" in settings) == (engine.stats.num_preemptions > 0)
