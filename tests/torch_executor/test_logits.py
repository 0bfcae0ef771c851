"""The forward pass equals transformers', however a sequence is cut, cached or batched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from headway.core.sampling import SamplingParams
from headway.executors.torch import LoadedModel
from headway.executors.torch.batch import RequestRows
from tests.torch_executor.support import Runner, assert_greedy, output_ids, random_ids, serve
from tests.torch_executor.tiny_models import CONFIGS, VOCAB_SIZE, TinyModel

TOLERANCE = 1e-3
PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
"""The chat template around "What is the capital of France?"."""

Models = Callable[[str], TinyModel]
Loaded = Callable[[str], LoadedModel]


def close(ours: Tensor, theirs: Tensor) -> None:
    """Within the tolerance everywhere."""
    difference = float((ours - theirs).abs().max())
    assert ours.shape == theirs.shape and difference <= TOLERANCE, f"logits differ by up to {difference}"


@pytest.mark.parametrize("name", CONFIGS)
def test_tiny_model_equals_transformers_in_any_chunks(name: str, tiny: Models, loaded: Loaded) -> None:
    """Whole, and in chunks of 1, 7, 16 and 512 (which cut the sequence elsewhere than its blocks do)."""
    token_ids = random_ids(600, VOCAB_SIZE)
    expected = tiny(name).logits(token_ids)
    runner = Runner(loaded(name))
    close(runner.logits(token_ids), expected)
    for chunk in (1, 7, 16, 512):
        close(runner.logits(token_ids, chunk=chunk), expected)


@pytest.mark.parametrize("block_size", [1, 5, 32])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "qwen2-some-layers-slide"])
def test_block_size_does_not_matter(name: str, block_size: int, tiny: Models, loaded: Loaded) -> None:
    """Blocks of one token, of a number that divides nothing, and longer than the window."""
    token_ids = random_ids(100, VOCAB_SIZE)
    runner = Runner(loaded(name), block_size=block_size)
    close(runner.logits(token_ids, chunk=23), tiny(name).logits(token_ids))


@pytest.mark.parametrize("name", CONFIGS)
def test_tiny_model_generates_what_transformers_would(name: str, tiny: Models, loaded: Loaded) -> None:
    """64 greedy tokens through the scheduler, each the reference's best."""
    prompt = random_ids(40, VOCAB_SIZE, seed=1)
    (request,), _, _ = serve(loaded(name), [prompt], _greedy(64), max_num_batched_tokens=16)
    outputs = output_ids(request)
    assert len(outputs) == 64
    assert_greedy(prompt, outputs, tiny(name).logits(prompt + outputs))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_mixed_batch_equals_single_runs(name: str, tiny: Models, loaded: Loaded) -> None:
    """32 requests of mixed lengths in one step: prompts whole and cut, decodes near and far, drafts to verify."""
    runner = Runner(loaded(name))
    requests, expected = [], []
    for i in range(32):
        length = (3, 17, 40, 75, 130)[i % 5] + i
        num_rows = (length, 1, 5, 20, 1)[i % 5]
        token_ids, table = random_ids(length, VOCAB_SIZE, seed=i), runner.table(length)
        start = length - num_rows
        if start:
            runner.logits(token_ids[:start], table=table)
        requests.append(RequestRows(token_ids[start:], start, np.array(table), num_sampled=min(num_rows, 4)))
        expected.append(tiny(name).logits(token_ids)[-min(num_rows, 4) :])
    close(runner.run(requests), torch.cat(expected))


@pytest.mark.parametrize("name", ["llama-llama3-rope", "qwen3", "mistral-sliding"])
def test_a_cached_prefix_equals_a_cold_run(name: str, tiny: Models, loaded: Loaded) -> None:
    """Two requests share their first four blocks; the second computes only what follows."""
    runner = Runner(loaded(name))
    prefix = random_ids(64, VOCAB_SIZE)
    first, second = prefix + random_ids(30, VOCAB_SIZE, seed=1), prefix + random_ids(45, VOCAB_SIZE, seed=2)
    table = runner.table(len(first))
    runner.logits(first, table=table)
    shared = runner.table(len(second), shared=table[:4])
    for chunk in (None, 7):
        close(runner.logits(second, table=shared, start=64, chunk=chunk), tiny(name).logits(second)[64:])


def test_a_block_may_be_filled_and_shared_in_the_same_step(tiny: Models, loaded: Loaded) -> None:
    """A request admitted in the step that computes its cached prefix reads what the other row writes there."""
    runner = Runner(loaded("llama"))
    prefix = random_ids(32, VOCAB_SIZE)
    first, second = [*prefix, 3], prefix + random_ids(20, VOCAB_SIZE, seed=2)
    table = runner.table(len(first))
    shared = runner.table(len(second), shared=table[:2])
    logits = runner.run([RequestRows(second[32:], 32, np.array(shared), 20), RequestRows(first, 0, np.array(table), 1)])
    close(logits[:20], tiny("llama").logits(second)[32:])
    close(logits[20:], tiny("llama").logits(first)[-1:])


def test_blocks_of_others_are_never_read(tiny: Models, loaded: Loaded) -> None:
    """Whatever lies in blocks outside a request's table, NaN included, a batch of unequal lengths does not see it."""
    runner = Runner(loaded("llama"), num_blocks=60)
    lengths = (5, 40, 90)
    tables = [runner.table(length) for length in lengths]
    own = torch.tensor([block for table in tables for block in table])
    for layer in runner.cache.layers:
        kept = layer[own]
        layer.fill_(float("nan"))
        layer[own] = kept
    requests, expected = [], []
    for length, table in zip(lengths, tables, strict=True):
        token_ids = random_ids(length, VOCAB_SIZE, seed=length)
        runner.logits(token_ids[:-1], table=table)
        requests.append(RequestRows(token_ids[-1:], length - 1, np.array(table), 1))
        expected.append(tiny("llama").logits(token_ids)[-1:])
    close(runner.run(requests), torch.cat(expected))


def test_padding_rows_change_nothing(tiny: Models, loaded: Loaded) -> None:
    """Rows that pad a prompt, a short prompt and a decode run, and leave logits and every block of the pool alone."""
    model = loaded("llama")
    lengths = [(40, 0, 9), (3, 0, 5), (30, 29, 3)]
    results = []
    for padded in (False, True):
        runner = Runner(model, num_blocks=20)
        requests = []
        for seed, (length, start, padding) in enumerate(lengths):
            token_ids, table = random_ids(length, VOCAB_SIZE, seed=seed), runner.table(length)
            if start:
                runner.logits(token_ids[:start], table=table)
            requests.append(RequestRows(token_ids[start:], start, np.array(table), 1, padding if padded else 0))
        logits = runner.run(requests)
        results.append((logits, [layer[: runner.cache.padding_block_id].clone() for layer in runner.cache.layers]))
    (plain, plain_cache), (padded_logits, padded_cache) = results
    close(padded_logits, plain)
    for ours, theirs in zip(padded_cache, plain_cache, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_bundled_model_equals_transformers(
    bundled: LoadedModel, bundled_reference: Callable[[list[int]], Tensor]
) -> None:
    """Logits of a chat prompt, and of 560 random tokens: whole, in chunks, and behind a cached prefix."""
    runner = Runner(bundled, num_blocks=400)
    close(runner.logits(PROMPT), bundled_reference(PROMPT))
    close(runner.logits(PROMPT, chunk=1), bundled_reference(PROMPT))
    token_ids = random_ids(560, bundled.vocab_size)
    expected = bundled_reference(token_ids)
    table = runner.table(len(token_ids))
    for chunk in (None, 7, 16, 512):
        close(runner.logits(token_ids, chunk=chunk, table=table), expected)
    shared = runner.table(len(token_ids), shared=table[:20])
    close(runner.logits(token_ids, table=shared, start=320), expected[320:])


@pytest.mark.slow
def test_bundled_model_generates_what_transformers_would(
    bundled: LoadedModel, bundled_reference: Callable[[list[int]], Tensor]
) -> None:
    """64 greedy tokens, alone and in a batch of 32 mixed lengths: the same tokens, each the reference's best."""
    (alone,), _, _ = serve(bundled, [PROMPT], _greedy(64), num_blocks=100)
    outputs = output_ids(alone)
    assert_greedy(PROMPT, outputs, bundled_reference(PROMPT + outputs))
    crowd = [random_ids(5 + 3 * i, bundled.vocab_size, seed=i) for i in range(31)]
    sampling = [_greedy(64)] + [_greedy(4 + i) for i in range(31)]
    requests, _, _ = serve(bundled, [PROMPT, *crowd], sampling, num_blocks=600)
    batched = output_ids(requests[0])
    assert_greedy(PROMPT, batched, bundled_reference(PROMPT + batched))


def _greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)
