"""Hypothesis strategies and state-machine helpers that several tests share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from headway.config import CacheConfig, SchedulerConfig
from headway.core.scheduler import Scheduler

EOS_ID = 7
"""The end-of-sequence id of every model in these tests."""

_SHARED_TOKENS = {"a": tuple(range(100, 140)), "b": (*range(100, 106), *range(200, 234))}
"""Two families of prompts; they have their first six tokens in common."""


class CountedMachine(RuleBasedStateMachine):
    """A state machine that counts the rule steps it executed, so that a test can demand enough of them."""

    num_rule_steps: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._is_set_up = False

    @invariant()
    def count_rule_step(self) -> None:
        """Invariants run after each rule; the first run, after set-up, is no rule step."""
        if self._is_set_up:
            type(self).num_rule_steps += 1
        self._is_set_up = True


def run_machine(machine: type[CountedMachine], least_rule_steps: int = 10_000) -> None:
    """Run a machine under the profile in force, and fail if it executed fewer rule steps than demanded."""
    machine.num_rule_steps = 0
    run_state_machine_as_test(machine, settings=settings.default)
    print(f"{machine.__name__}: {machine.num_rule_steps} rule steps")
    assert machine.num_rule_steps >= least_rule_steps


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that decides how a scheduler behaves."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    policy: str = "chunked"
    engine_version: str = "0.32.0"
    depth: int = 1
    """Steps in flight."""

    def make(self) -> Scheduler:
        """A fresh scheduler."""
        return Scheduler(
            self.scheduler,
            self.cache,
            policy=self.policy,
            engine_version=self.engine_version,
            max_in_flight=self.depth,
        )


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request to make: its prompt, and when its model would end it."""

    prompt: tuple[int, ...]
    max_tokens: int | None
    eos_at: int | None
    """Index of the output token that is EOS; None if the model never ends."""
    priority: int
    salt: str | None


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Small schedulers of every policy and queue order, with up to three steps in flight and tight pools.

    Releases before 0.27 re-issue tokens of requests preempted in flight, and 0.9.2 to 0.11.0 mishandle priority
    victims: the former are drawn without overlap, the latter are left to the conformance tests.
    """
    depth = draw(st.sampled_from([1, 1, 2, 2, 3]))
    versions = ["0.32.0", "0.33.0", "0.27.0"] if depth > 1 else ["0.32.0", "0.33.0", "0.24.0", "0.19.0", "0.8.5"]
    num_drafts = draw(st.sampled_from([0, 0, 1, 3]))
    max_model_len = draw(st.integers(6, 40))
    block_size = draw(st.integers(1, 5))
    policy = draw(st.sampled_from(["chunked", "chunked", "continuous", "static", "naive"]))
    most_blocks = -(-max_model_len // block_size)
    reserves = policy in ("static", "naive")
    least, most = (most_blocks, 3 * most_blocks) if reserves else (1, most_blocks + most_blocks // 2)
    scheduler = SchedulerConfig(
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1 + num_drafts, 32)),
        max_model_len=max_model_len,
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 1, 5])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        max_num_active_seqs=draw(st.sampled_from([None, None, 2])),
        scheduler_reserve_full_isl=draw(st.sampled_from([None, False])),
        async_scheduling=depth > 1 and draw(st.booleans()),
        num_lookahead_tokens=draw(st.sampled_from([0, num_drafts])),
        num_speculative_tokens=num_drafts,
    )
    cache = CacheConfig(
        num_blocks=1 + draw(st.integers(least, most)),
        block_size=block_size,
        enable_prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        sliding_window=draw(st.sampled_from([None, None, 2, 5, 8])),
    )
    return Setup(scheduler, cache, policy, draw(st.sampled_from(versions)), depth)


def prompts(max_len: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Prompts that begin alike: some tokens of a family, then own ones."""
    return st.builds(
        lambda family, num_shared, own: (*_SHARED_TOKENS[family][:num_shared], *own)[:max_len] or (1,),
        st.sampled_from("ab"),
        st.integers(0, max_len),
        st.lists(st.integers(300, 302), max_size=6),
    )


def request_specs(max_prompt_len: int) -> st.SearchStrategy[RequestSpec]:
    """Requests with prompts of up to `max_prompt_len` tokens."""
    return st.builds(
        RequestSpec,
        prompt=prompts(max_prompt_len),
        max_tokens=st.one_of(st.none(), st.integers(1, 20)),
        eos_at=st.one_of(st.none(), st.none(), st.integers(0, 20)),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "s"]),
    )
