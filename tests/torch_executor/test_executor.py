"""The executor under hand-made plans and under the real scheduler: drafts, preemption, padding, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headway.core.plan import NOTHING, StepPlan
from headway.core.sampling import SamplingParams
from headway.errors import ConfigError
from headway.executors.torch import LoadedModel, TorchExecutor, load
from headway.executors.torch.attention import Span
from headway.executors.torch.grouping import MAX_GROUP_BLOCKS, MAX_GROUPED_ROWS, group_spans
from tests.torch_executor.support import Plans, assert_greedy, make_request, output_ids, random_ids, serve
from tests.torch_executor.tiny_models import VOCAB_SIZE, TinyModel

Models = Callable[[str], TinyModel]
Loaded = Callable[[str], LoadedModel]


def greedy(max_tokens: int) -> SamplingParams:
    """Greedy, so many tokens."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


@pytest.fixture
def plans(loaded: Loaded) -> Plans:
    """Hand-made plans for the tiny Llama."""
    return Plans(TorchExecutor(loaded("llama"), num_blocks=200, block_size=16))


def greedy_continuation(tiny: Models, prompt: list[int], count: int, name: str = "llama") -> list[int]:
    """Transformers' greedy tokens."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(tiny(name).logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


# ---------------------------------------------------------------- hand-made plans


def test_only_steps_that_reach_the_last_token_emit(plans: Plans, tiny: Models) -> None:
    """Chunks emit nothing; the one that completes the prompt emits the first token; durations are measured."""
    prompt = random_ids(40, VOCAB_SIZE)
    request = make_request("a", prompt)
    first = plans.executor.execute(plans.plan([plans.item(request, 30)]))
    assert list(first.emissions) == [NOTHING] and first.duration_s > 0 and first.provenance == "measured"
    second = plans.executor.execute(plans.plan([plans.item(request, 10)]))
    assert second.emissions[0].num_tokens == 1
    assert second.emissions[0].token_ids == greedy_continuation(tiny, prompt, 1)
    assert second.step_id == plans.step_id


def test_an_empty_plan_is_executed(plans: Plans) -> None:
    """A step that only releases or preempts."""
    result = plans.executor.execute(plans.plan([], released_ids=["gone"]))
    assert list(result.emissions) == []


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_drafts_are_accepted_up_to_the_first_wrong_one(num_right: int, plans: Plans, tiny: Models) -> None:
    """One token more than the accepted drafts is emitted, and all are what single steps would have given."""
    prompt = random_ids(20, VOCAB_SIZE)
    expected = greedy_continuation(tiny, prompt, 5)
    request = make_request("a", prompt)
    plans.executor.execute(plans.plan([plans.item(request, 20)]))
    request.content.extend(1, expected[:1])
    request.num_tokens += 1
    wrong = [(token + 1) % VOCAB_SIZE for token in expected[1:4]]
    request.draft_token_ids = expected[1 : 1 + num_right] + wrong[num_right:]
    item = plans.item(request, 4, num_draft_tokens=3)
    emission = plans.executor.execute(plans.plan([item])).emissions[0]
    assert emission.num_tokens == num_right + 1
    assert emission.token_ids == expected[1 : num_right + 2]


def test_drafts_are_verified_as_single_steps_would_sample(plans: Plans) -> None:
    """With a seed and penalties, drafts equal to what would be drawn are all accepted, with a logprob each."""
    settings = SamplingParams(temperature=1.0, seed=11, repetition_penalty=1.3, frequency_penalty=0.7, logprobs=2)
    prompt = random_ids(20, VOCAB_SIZE)
    single = make_request("single", prompt, settings)
    for num_tokens in (20, 1, 1, 1):
        emission = plans.executor.execute(plans.plan([plans.item(single, num_tokens)])).emissions[0]
        single.content.extend(1, emission.token_ids)
        single.num_tokens += 1
    outputs = output_ids(single)
    drafted = make_request("drafted", prompt, settings)
    plans.executor.execute(plans.plan([plans.item(drafted, 20)]))
    drafted.content.extend(1, outputs[:1])
    drafted.num_tokens += 1
    drafted.draft_token_ids = outputs[1:3]
    emission = plans.executor.execute(plans.plan([plans.item(drafted, 3, num_draft_tokens=2)])).emissions[0]
    assert emission.token_ids == outputs[1:4]
    assert [entry.token_id for entry in emission.logprobs] == outputs[1:4]


def test_a_failed_step_can_be_repeated_or_left(plans: Plans, tiny: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the middle of a forward pass reaches the caller; tables and later steps are as if it never was."""
    prompt = random_ids(40, VOCAB_SIZE)
    request, other = make_request("a", prompt), make_request("b", prompt[:10])
    plans.executor.execute(plans.plan([plans.item(request, 20)]))
    plan = plans.plan([plans.item(request, 20), plans.item(other, 10)])

    def fail(*_: Any) -> None:
        raise MemoryError("no memory for logits")

    with monkeypatch.context() as patch:
        patch.setattr("headway.executors.torch.executor._accept", fail)
        with pytest.raises(MemoryError):
            plans.executor.execute(plan)
    result = plans.executor.execute(plan)
    assert result.emissions[0].token_ids == greedy_continuation(tiny, prompt, 1)
    assert result.emissions[1].token_ids == greedy_continuation(tiny, prompt[:10], 1)
    table = plans.executor._states["a"].block_ids
    assert table.tolist() == plans.tables["a"]


def test_state_is_dropped_with_the_request(plans: Plans) -> None:
    """Finished and preempted requests leave nothing behind; a resumed one brings its whole table."""
    requests = [make_request(name, random_ids(20, VOCAB_SIZE)) for name in "ab"]
    plans.executor.execute(plans.plan([plans.item(request, 20) for request in requests]))
    assert set(plans.executor._states) == {"a", "b"}
    plans.executor.execute(plans.plan([], released_ids=["a"], preempted=[requests[1]]))
    assert not plans.executor._states
    requests[1].num_computed_tokens = 0
    plans.tables.pop("b")
    resumed = plans.plan([plans.item(requests[1], 20)], new=[], resumed=[requests[1]])
    assert plans.executor.execute(resumed).emissions[0].num_tokens == 1


def test_the_next_plan_may_come_before_tokens_are_appended(plans: Plans, tiny: Models) -> None:
    """Asynchronous scheduling: three steps in a row run on the executor's own memory of what it emitted."""
    prompt = random_ids(20, VOCAB_SIZE)
    expected = greedy_continuation(tiny, prompt, 4)
    request = make_request("a", prompt)
    emitted = []
    for num_tokens in (20, 1, 1, 1):
        item = plans.item(request, num_tokens, samples=True)
        emitted += list(plans.executor.execute(plans.plan([item])).emissions[0].token_ids or ())
        if len(emitted) == 3:  # the content catches up with the first two only
            request.content.extend(2, emitted[:2])
            request.num_tokens += 2
    assert emitted == expected


def test_unseeded_requests_differ(plans: Plans) -> None:
    """Without a seed, equal requests go their own ways."""
    prompt = random_ids(20, VOCAB_SIZE)
    requests = [make_request(f"r{i}", prompt, SamplingParams(temperature=2.0)) for i in range(12)]
    result = plans.executor.execute(plans.plan([plans.item(request, 20) for request in requests]))
    assert len({tuple(emission.token_ids or ()) for emission in result.emissions}) > 3


def test_kv_bytes_per_token(plans: Plans) -> None:
    """Keys and values of all layers, in float32; the pool's tensors hold exactly that."""
    assert plans.executor.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    pool = sum(layer[:200].numel() * layer.element_size() for layer in plans.executor.cache.layers)
    assert pool == 200 * 16 * plans.executor.kv_bytes_per_token


# ---------------------------------------------------------------- under the real scheduler


@pytest.mark.parametrize("name", ["llama", "qwen2-some-layers-slide", "mistral-sliding"])
@pytest.mark.parametrize("policy", ["naive", "static", "continuous", "chunked"])
def test_policies_generate_the_same_text(policy: str, name: str, tiny: Models, loaded: Loaded) -> None:
    """Padding, reservation and chunking change who runs when, never what comes out."""
    prompts = [random_ids(4 + 11 * i, VOCAB_SIZE, seed=i) for i in range(6)]
    sampling = [greedy(3 + 2 * i) for i in range(6)]
    requests, _, _ = serve(
        loaded(name), prompts, sampling, policy=policy, num_blocks=900, max_num_seqs=4, max_num_batched_tokens=32
    )
    for request, prompt, params in zip(requests, prompts, sampling, strict=True):
        assert request.num_output_tokens == params.max_tokens
        assert_greedy(prompt, output_ids(request), tiny(name).logits(prompt + output_ids(request)))


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(("name", "num_blocks"), [("llama", 18), ("mistral-sliding", 9)])
def test_preemption_changes_nothing(name: str, num_blocks: int, async_scheduling: bool, loaded: Loaded) -> None:
    """A pool too small for everybody: requests lose their blocks and recompute, and even seeded draws are the same."""
    prompts = [random_ids(30 + 7 * i, VOCAB_SIZE, seed=i) for i in range(8)]
    sampling = [SamplingParams(temperature=0.8, seed=i, max_tokens=40, top_p=0.95) for i in range(8)]
    calm, _, engine = serve(loaded(name), prompts, sampling, num_blocks=200)
    assert engine.scheduler.stats.num_preemptions == 0
    tight, _, engine = serve(
        loaded(name),
        prompts,
        sampling,
        num_blocks=num_blocks,
        async_scheduling=async_scheduling,
        max_num_batched_tokens=16,
    )
    assert engine.scheduler.stats.num_preemptions > 0
    assert [output_ids(request) for request in tight] == [output_ids(request) for request in calm]


def test_asynchronous_scheduling_generates_the_same(loaded: Loaded) -> None:
    """Two steps in flight, penalties that look at the newest token included."""
    prompts = [random_ids(20 + i, VOCAB_SIZE, seed=i) for i in range(10)]
    settings = [
        SamplingParams(temperature=i % 2, seed=i, max_tokens=20, frequency_penalty=0.5, min_tokens=4) for i in range(10)
    ]
    synchronous, _, _ = serve(loaded("llama"), prompts, settings)
    asynchronous, _, _ = serve(loaded("llama"), prompts, settings, async_scheduling=True)
    assert [output_ids(request) for request in asynchronous] == [output_ids(request) for request in synchronous]


def test_cached_prefixes_generate_the_same(loaded: Loaded) -> None:
    """Prompts with a common beginning hit the cache, within one step and later."""
    prefix = random_ids(70, VOCAB_SIZE)
    prompts = [prefix + random_ids(3 + i, VOCAB_SIZE, seed=i) for i in range(6)]
    cached, _, engine = serve(loaded("llama"), prompts, greedy(8), max_num_seqs=3)
    assert engine.scheduler.stats.prefix_cache_hits > 0
    cold, _, _ = serve(loaded("llama"), prompts, greedy(8), enable_prefix_caching=False)
    assert [output_ids(request) for request in cached] == [output_ids(request) for request in cold]


def test_a_request_does_not_depend_on_its_neighbours(loaded: Loaded) -> None:
    """Seeds, penalties, bias, minimum length and logprobs: alone or among 31 others, the same tokens."""
    prompts = [random_ids(5 + 4 * i, VOCAB_SIZE, seed=i) for i in range(32)]
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"seed": 1, "top_p": 0.9},
        {"seed": 2, "top_k": 20, "repetition_penalty": 1.2},
        {"seed": 3, "min_p": 0.1, "presence_penalty": 1.0},
        {"temperature": 0.0, "frequency_penalty": 1.0, "logit_bias": {5: 2.0}},
        {"seed": 4, "min_tokens": 6, "stop_token_ids": frozenset(range(100))},
    ]
    sampling = [SamplingParams(max_tokens=10, **kinds[i % 6]) for i in range(32)]
    together, _, _ = serve(loaded("llama"), prompts, sampling, max_num_batched_tokens=128)
    for request, prompt, params in zip(together, prompts, sampling, strict=True):
        (alone,), _, _ = serve(loaded("llama"), [prompt], params)
        assert output_ids(alone) == output_ids(request)


def test_logprobs_travel_with_the_tokens(loaded: Loaded) -> None:
    """One entry for each emitted token, for the request that asked."""
    sampling = [SamplingParams(temperature=0.0, max_tokens=5, logprobs=3), greedy(5)]
    _, outputs, _ = serve(loaded("llama"), [random_ids(9, VOCAB_SIZE)] * 2, sampling)
    for output in outputs:
        if output.request.request_id == "r0":
            assert [entry.token_id for entry in output.logprobs] == list(output.token_ids or ())
        else:
            assert output.logprobs is None


# ---------------------------------------------------------------- groups, settings


def test_groups_hold_equal_row_counts_and_little_padding() -> None:
    """Every span is in one group; long chunks stand alone; what is gathered in vain is bounded."""
    random = np.random.default_rng(0)
    spans = [
        Span(int(random.integers(0, 3000)), int(random.choice([1, 1, 1, 4, 40])), np.zeros(1, int)) for _ in range(200)
    ]
    groups = group_spans(spans, 16, None)
    assert sorted(index for group in groups for index in group) == list(range(200))
    for group in groups:
        members = [spans[index] for index in group]
        blocks = [-(-span.context_length // 16) for span in members]
        gathered = max(blocks) * len(blocks)
        assert len({span.num_rows for span in members}) == 1
        assert len(group) == 1 or (members[0].num_rows <= MAX_GROUPED_ROWS and gathered <= MAX_GROUP_BLOCKS)
        assert gathered - sum(blocks) <= max(8, 0.2 * sum(blocks))
    assert len(groups) < 120


def test_windows_bound_what_counts_as_length() -> None:
    """Where every layer slides, contexts of very different length gather the same number of blocks."""
    spans = [Span(position, 1, np.zeros(1, int)) for position in (100, 5000)]
    assert len(group_spans(spans, 16, None)) == 2
    assert len(group_spans(spans, 16, 32)) == 1


@pytest.mark.parametrize(
    "settings", [{"device": "abacus"}, {"device": "cuda:99"}, {"dtype": "float8"}, {"num_threads": 0}], ids=str
)
def test_settings_that_cannot_work(settings: dict[str, Any], tiny: Models) -> None:
    """A device that is not there, a type that is not implemented, no threads."""
    if settings.get("device", "").startswith("cuda") and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ConfigError):
        load(tiny("llama").folder, **settings)


def test_out_of_vocabulary_ids_do_not_break_the_executor(plans: Plans) -> None:
    """The door should have refused such a request; if one gets in, the step fails and the next one works."""
    bad, good = make_request("bad", [VOCAB_SIZE + 5, 1, 2]), make_request("good", [1, 2, 3])
    with pytest.raises(IndexError):
        plans.executor.execute(plans.plan([plans.item(bad, 3)]))
    result = plans.executor.execute(plans.plan([plans.item(good, 3)], released_ids=["bad"]))
    assert result.emissions[0].num_tokens == 1


def test_plans_are_read_only(plans: Plans) -> None:
    """Executing changes neither plan nor request: the scheduler alone writes them."""
    request = make_request("a", random_ids(20, VOCAB_SIZE))
    plan: StepPlan = plans.plan([plans.item(request, 20)])
    before = (request.num_tokens, request.num_computed_tokens, list(output_ids(request)), list(plan.scheduled))
    plans.executor.execute(plan)
    after = (request.num_tokens, request.num_computed_tokens, list(output_ids(request)), list(plan.scheduled))
    assert after == before
