"""Batching policies: four ways to run the one scheduling loop.

A policy changes limits before the loop starts, may bring a waiting queue of its own, and answers three questions
inside the loop: how many requests may run now, how many tokens each reserves at admission, and which padding rows a
step carries. The loop names no policy, so one from a file of yours runs in simulation and on a real model alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb

from headway.config import BATCHING_POLICIES, CacheConfig, SchedulerConfig
from headway.core.plan import ScheduledRequest
from headway.core.queues import WaitingQueue
from headway.errors import ConfigError, HeadwayError


class ChunkedPolicy:
    """Continuous batching with chunked prefill: what vLLM V1 does. Also the base of the other policies."""

    name = "chunked"
    file = ""
    """The Python file that the policy comes from; empty for ours."""
    may_fast_forward = True
    """Whether a step like the last one, with nobody ended or admitted, is always scheduled as it was. A policy from a
    file must say so itself to be simulated with fast-forward."""

    def queue(self, usual: WaitingQueue) -> WaitingQueue:
        """The queue that requests wait in, empty; `usual` is that of the configured scheduling policy."""
        return usual

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """The limits that this policy schedules under, given the configured ones."""
        return config

    def cache(self, config: CacheConfig) -> CacheConfig:
        """The pool settings that this policy uses, given the configured ones."""
        return config

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """How many requests may be running after this step's admissions; `num_running` are before them."""
        return max_num_seqs

    def reserve(self, max_model_len: int) -> int:
        """Tokens for which a request takes KV slots at admission; 0 takes them as it grows."""
        return 0

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """The step's requests with the padding rows that the policy adds."""
        return scheduled

    def decode_padding(self, num_decodes: int) -> int:
        """Padding rows that `padding` would add to a step of so many one-token decodes and nothing else."""
        return 0


class ContinuousPolicy(ChunkedPolicy):
    """Continuous batching with whole prompts: a prompt joins in one piece, however long everybody then waits."""

    name = "continuous"

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """Chunking off; the budget must then hold the longest prompt."""
        return replace(
            config,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=0,
            max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_model_len),
        )


class StaticPolicy(ChunkedPolicy):
    """Static batching: up to max_num_seqs start together and nobody joins until all have finished.

    Each reserves the longest sequence, prompts are padded to the longest of the batch, and a finished row still costs
    one token a step until the batch drains.
    """

    name = "static"

    def __init__(self) -> None:
        self._batch_size = 0

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """Chunking off and no token budget."""
        return replace(
            config,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=0,
            max_num_batched_tokens=config.max_num_seqs * config.max_model_len,
        )

    def cache(self, config: CacheConfig) -> CacheConfig:
        """Without prefix caching: each row of the batch holds its own copy."""
        return replace(config, enable_prefix_caching=False)

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """Everybody or nobody."""
        return 0 if num_running else max_num_seqs

    def reserve(self, max_model_len: int) -> int:
        """The longest sequence there may be."""
        return max_model_len

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """Pad prompts to the longest; in later steps finished rows ride along, one token each."""
        if not scheduled:
            return scheduled
        if scheduled[0].num_computed_tokens == 0:
            self._batch_size = len(scheduled)
            longest = max(item.num_tokens for item in scheduled)
            return [item._replace(num_padding_tokens=longest - item.num_tokens) for item in scheduled]
        num_finished = self.decode_padding(len(scheduled))
        if not num_finished:
            return scheduled
        return [scheduled[0]._replace(num_padding_tokens=num_finished), *scheduled[1:]]

    def decode_padding(self, num_decodes: int) -> int:
        """A row for each of the batch that has finished."""
        return self._batch_size - num_decodes


class NaivePolicy(StaticPolicy):
    """One request at a time, from prompt to last token, in a reservation of the longest sequence."""

    name = "naive"

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """One, once the one before it has finished."""
        return 1

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """None: there is nobody to be as long as."""
        return scheduled

    def decode_padding(self, num_decodes: int) -> int:
        """None."""
        return 0


_POLICIES = {policy.name: policy for policy in (NaivePolicy, StaticPolicy, ContinuousPolicy, ChunkedPolicy)}
assert tuple(_POLICIES) == BATCHING_POLICIES


def make_policy(name: str) -> ChunkedPolicy:
    """The policy of that name, or a class of a Python file: `FILE.py:CLASS`, or `FILE.py` if it defines only one.

    Raises:
        ConfigError: no such policy, or a file that cannot be run or holds none.
    """
    if ".py" in name:
        policy = _policy_in_file(name)
        with blaming(name):
            return policy()
    if name not in _POLICIES:
        raise ConfigError(
            f"There is no batching policy {name!r}.", hint=f"Known: {', '.join(_POLICIES)}, or FILE.py:CLASS."
        )
    return _POLICIES[name]()


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Within it, what a policy from a file raises is told as the fault of that file and line.

    Raises:
        ConfigError: in place of an error, not one of `headway.errors`, whose traceback goes through the policy's file.
    """
    try:
        yield
    except HeadwayError:
        raise
    except Exception as error:
        path = Path(f"{name.partition('.py')[0]}.py")
        frames = [frame for frame in extract_tb(error.__traceback__) if Path(frame.filename) == path.absolute()]
        if ".py" not in name or not frames:
            raise
        raise ConfigError(
            f"The policy fails: {type(error).__name__}: {error} ({path}, line {frames[-1].lineno})."
        ) from error


@cache
def _policy_in_file(place: str) -> type[ChunkedPolicy]:
    text, _, wanted = place.partition(".py:") if ".py:" in place else (place.removesuffix(".py"), "", "")
    path = Path(f"{text}.py")
    spec = spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"There is no file {path} with a batching policy.")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be run: {type(error).__name__}: {error}.") from error
    found = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, ChunkedPolicy) and kind.__module__ == module.__name__
    ]
    chosen = [kind for kind in found if kind.__name__ == wanted or not wanted]
    if len(chosen) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise ConfigError(
            f"{path} has {len(chosen)} batching policies{f' called {wanted}' if wanted else ''}.",
            hint=f"Name one as {path}:CLASS; classes derived from ChunkedPolicy there: {names}.",
        )
    policy = chosen[0]
    policy.file = str(path)
    if "may_fast_forward" not in vars(policy):
        policy.may_fast_forward = False
    if "name" not in vars(policy):
        policy.name = policy.__name__
    return policy
