"""Each sampling setting against a plain reference of one row; batches, seeds and neighbours."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from headway.core.sampling import SamplingParams
from headway.executors.torch.sampler import SamplingRow, sample, uniform

VOCAB_SIZE = 5000
"""More than the nucleus search sorts at first, so that all of its ways run."""
PROMPT = [1, 2, 3, 3]
OUTPUT = [3, 5, 5, 7, 5]


def row(
    token_ids: Sequence[int] = (*PROMPT, *OUTPUT), *, seed: int = 0, stop_ids: Sequence[int] = (), **settings: Any
) -> SamplingRow:
    """A row with the given settings, whose prompt is PROMPT."""
    return SamplingRow(SamplingParams(**settings), list(token_ids), len(PROMPT), frozenset(stop_ids), seed)


def some_logits(num_rows: int = 1, seed: int = 0, spread: float = 3.0) -> Tensor:
    """Random logits."""
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * spread


def reference_distribution(logits: Sequence[float], row: SamplingRow) -> dict[int, float]:
    """Probabilities of the tokens that may be drawn, by the definitions, one after the other."""
    params = row.params
    values = dict(enumerate(logits))
    if params.allowed_token_ids is not None:
        values = {i: v for i, v in values.items() if i in params.allowed_token_ids}
    if row.num_output_tokens < params.min_tokens:
        values = {i: v for i, v in values.items() if i not in row.stop_ids}
    values = {i: v + params.logit_bias.get(i, 0.0) for i, v in values.items()}
    for token_id in set(row.token_ids) & set(values):
        value, penalty = values[token_id], params.repetition_penalty
        values[token_id] = value / penalty if value > 0 else value * penalty
    for token_id, count in Counter(row.token_ids[row.num_prompt_tokens :]).items():
        if token_id in values:
            values[token_id] -= params.frequency_penalty * count + params.presence_penalty
    if params.greedy:
        return {max(values, key=lambda i: values[i]): 1.0}
    weights = _normal({i: math.exp(v / params.temperature) for i, v in values.items()})
    most = max(weights.values())
    weights = _normal({i: p for i, p in weights.items() if p >= params.min_p * most})
    ranked = sorted(weights, key=lambda i: -weights[i])
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    weights = _normal({i: weights[i] for i in ranked})
    kept, mass = [], 0.0
    for token_id in ranked:
        if mass >= params.top_p:
            break
        kept.append(token_id)
        mass += weights[token_id]
    return _normal({i: weights[i] for i in kept})


def _normal(weights: dict[int, float]) -> dict[int, float]:
    total = sum(weights.values())
    return {i: weight / total for i, weight in weights.items()}


def reference_choice(logits: Tensor, row: SamplingRow) -> int:
    """The token at the row's uniform number, tokens in order of id."""
    distribution = reference_distribution(logits.tolist(), row)
    number, mass = uniform(row.seed, row.num_output_tokens), 0.0
    for token_id in sorted(distribution):
        mass += distribution[token_id]
        if number < mass:
            return token_id
    raise AssertionError("the distribution does not sum to 1")


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": -1},
    {"top_k": VOCAB_SIZE + 10},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.999, "temperature": 2.0},
    {"top_p": 0.9999, "temperature": 2.0},
    {"top_p": 1e-9},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"min_p": 0.02, "top_k": 30, "top_p": 0.8, "temperature": 0.7},
    {"repetition_penalty": 1.8, "temperature": 0.0},
    {"repetition_penalty": 0.4},
    {"presence_penalty": 2.0, "frequency_penalty": -1.5, "temperature": 0.0},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.5, "top_p": 0.7},
    {"logit_bias": {5: 100.0, 6: -100.0}, "temperature": 0.0},
    {"logit_bias": {9: 12.0, 8: 11.5}},
    {"allowed_token_ids": frozenset({4, 900, 2999})},
    {"allowed_token_ids": frozenset({4, 5}), "logit_bias": {6: 100.0}, "temperature": 0.0},
    {"min_tokens": 6, "allowed_token_ids": frozenset({10, 11, 12})},
    {"min_tokens": 5, "allowed_token_ids": frozenset({10, 11})},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_row_equals_the_reference(settings: dict[str, Any]) -> None:
    """For many logits and seeds, the very token that the definitions give."""
    for seed in range(12):
        logits = some_logits(seed=seed)
        logits[0, [1, 3, 5, 7]] += 8.0  # tokens that penalties touch must matter
        chosen = row(seed=seed, stop_ids=[10, 11], **settings)
        expected = reference_choice(logits[0], chosen)
        assert sample(logits.clone(), [chosen])[0].token_id == expected


def test_settings_mixed_in_one_batch_equal_single_rows() -> None:
    """Neighbours of every kind change nothing: not the token, not the logprobs, to the bit."""
    rows = [row(seed=i, stop_ids=[10, 11], **(settings | {"logprobs": i % 3})) for i, settings in enumerate(SETTINGS)]
    logits = some_logits(len(rows), seed=5)
    together = sample(logits.clone(), rows)
    alone = [sample(logits[i : i + 1].clone(), [each])[0] for i, each in enumerate(rows)]
    assert together == alone
    order = random.Random(0).sample(range(len(rows)), len(rows))
    shuffled = sample(logits[order].clone(), [rows[i] for i in order])
    assert [together[i] for i in order] == shuffled


def test_seeds_decide_and_positions_differ() -> None:
    """The same seed and position give the same token; another seed or position gives its own."""
    logits = some_logits(spread=0.5)

    def draw(seed: int, num_outputs: int) -> int:
        return sample(logits.clone(), [row([*PROMPT, *[9] * num_outputs], seed=seed)])[0].token_id

    assert draw(1, 4) == draw(1, 4)
    assert len({draw(seed, 4) for seed in range(20)}) > 15
    assert len({draw(1, position) for position in range(20)}) > 15
    assert draw(-3, 0) != draw(3, 0) and draw(2**80, 0) == draw(2**80, 0)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws from four tokens: chi-squared below the 99.9 % point of three degrees of freedom."""
    probabilities = [0.1, 0.2, 0.3, 0.4]
    logits = torch.log(torch.tensor(probabilities)).repeat(20_000, 1)
    rows = [row(PROMPT, seed=seed) for seed in range(20_000)]
    counts = Counter(token.token_id for token in sample(logits, rows))
    expected = [20_000 * p for p in probabilities]
    assert sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected)) < 16.27


def test_uniform_numbers_are_strictly_inside_the_interval() -> None:
    """Neither 0 nor 1, so that no token of probability 0 is ever drawn."""
    numbers = [uniform(seed, 0) for seed in range(5000)]
    assert min(numbers) > 0 and max(numbers) < 1 and abs(sum(numbers) / 5000 - 0.5) < 0.02


def test_forbidden_tokens_are_never_drawn() -> None:
    """Even where they are almost all of the mass."""
    logits = torch.zeros(300, 50)
    logits[:, 10] = 30.0
    rows = [row(PROMPT, seed=seed, stop_ids=[10], min_tokens=1) for seed in range(300)]
    assert 10 not in {token.token_id for token in sample(logits.clone(), rows)}
    over = [row([*PROMPT, 4], seed=seed, stop_ids=[10], min_tokens=1) for seed in range(300)]
    assert {token.token_id for token in sample(logits, over)} == {10}


def test_almost_zero_temperature_is_greedy() -> None:
    """Where division would overflow, the largest logit wins."""
    logits = some_logits()
    assert sample(logits.clone(), [row(temperature=1e-30)])[0].token_id == int(logits.argmax())


def test_logprobs_are_those_of_the_raw_logits() -> None:
    """Bias, penalties, temperature and filters choose the token; the report is of what the model thought."""
    logits = some_logits()
    chosen = row(logprobs=4, temperature=0.5, top_k=5, logit_bias={17: 90.0})
    (token,) = sample(logits.clone(), [chosen])
    raw = torch.log_softmax(logits[0], dim=-1)
    assert token.token_id == 17 and token.logprobs is not None
    assert token.logprobs.token_id == 17
    assert token.logprobs.logprob == pytest.approx(float(raw[17]))
    assert token.logprobs.rank == int((raw >= raw[17]).sum())
    best = raw.topk(4)
    assert token.logprobs.top == list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def test_logprobs_zero_reports_the_chosen_token_alone() -> None:
    """A count of 0 asks for the chosen token; none asks for nothing; different counts may share a step."""
    logits = some_logits(3)
    rows = [row(logprobs=0, temperature=0.0), row(temperature=0.0), row(logprobs=2, temperature=0.0)]
    none_top, nothing, two = sample(logits.clone(), rows)
    assert none_top.logprobs is not None and none_top.logprobs.top == [] and none_top.logprobs.rank == 1
    assert nothing.logprobs is None
    assert two.logprobs is not None and len(two.logprobs.top) == 2


def test_prompt_tokens_count_for_repetition_only() -> None:
    """Presence and frequency look at the output; repetition looks at the prompt too."""
    logits = torch.zeros(2, 10)
    logits[:, 1], logits[:, 4] = 2.0, 1.9
    rows = [
        row(PROMPT, presence_penalty=2.0, frequency_penalty=2.0, temperature=0.0),
        row(PROMPT, repetition_penalty=1.5, temperature=0.0),
    ]
    assert [token.token_id for token in sample(logits, rows)] == [1, 4]
