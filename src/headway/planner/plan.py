"""The plan itself: will it fit, how many KV tokens and blocks, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.catalog.defaults import version_fact
from headway.core.profiles import profile_for
from headway.planner.budget import RankBudget, Term, rank_budgets
from headway.planner.deployment import Deployment, Resolved, resolve
from headway.planner.kv_layout import as_cached
from headway.planner.memory import MemoryCoefficients, coefficients


@dataclass(frozen=True, slots=True)
class Range:
    """A number with its bounds."""

    likely: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a deployment's memory gives, on the pipeline rank that binds.

    `kv_cache_tokens` is what the version's log calls "GPU KV cache size"; `max_concurrency` is requests of
    max_model_len at once, as it counts them. `shortfall_bytes` is what one request of that length lacks on each GPU (0
    if it fits), with what weights and activations lack already, where they exceed the budget by themselves.
    """

    resolved: Resolved
    ranks: tuple[RankBudget, ...]
    binding_rank: int
    num_gpu_blocks: int
    blocks_per_request: int
    kv_bytes_per_token: int
    kv_cache_tokens: Range
    max_concurrency: float
    max_model_len_that_fits: int
    shortfall_bytes: int

    @property
    def deployment(self) -> Deployment:
        """What was planned."""
        return self.resolved.deployment

    @property
    def binding(self) -> RankBudget:
        """The rank with the fewest blocks."""
        return self.ranks[self.binding_rank]

    @property
    def terms(self) -> tuple[Term, ...]:
        """The binding rank's terms."""
        return self.binding.terms

    @property
    def available_kv_cache_bytes(self) -> int:
        """KV memory on each GPU of the binding rank; negative where the rest already exceeds the budget."""
        return self.binding.available_bytes

    @property
    def fits(self) -> bool:
        """The engine starts: one request of max_model_len has its blocks."""
        reserved = 1 if version_fact("null_block_is_reserved_at_start", self.resolved.defaults.version) else 0
        return self.num_gpu_blocks - reserved >= self.blocks_per_request

    @property
    def kv_bytes_per_token_of_model(self) -> int:
        """All GPUs of a tensor-parallel group together, heads that are copied counted once."""
        return _bytes_per_token(self.resolved, tp=1)

    @property
    def token_blocks_per_request(self) -> int:
        """Of `blocks_per_request`, those of the layers that keep every token."""
        return self.binding.layout.token_blocks(self.resolved.max_model_len)

    @property
    def block_size(self) -> int:
        """Tokens in a block of the layers that keep tokens."""
        return self.binding.layout.block_size

    @property
    def longest_admissible(self) -> int | None:
        """Tokens of the longest request that is ever scheduled, where that is less than what starts; else None.

        From 0.19.0 admission wants room for the whole sequence, and before 0.20.0 it did not know that sliding windows
        give blocks back: a longer request waits for ever and holds up all behind it.
        """
        if not (0, 8) <= self.resolved.defaults.version[:2] <= (0, 33):
            return None
        profile = profile_for(".".join(map(str, self.resolved.defaults.version)))
        if not profile.gates_on_full_sequence or profile.caps_window_at_gate:
            return None
        longest = self.binding.layout.longest_request(self.num_gpu_blocks, 1 << 40)
        return longest if longest < self.resolved.max_model_len else None

    @property
    def uniform_num_gpu_blocks(self) -> int:
        """Blocks of a pool with one group only that holds as many requests of max_model_len as this one.

        The pool itself where there is one group. With several, each takes blocks of its own for the same tokens, so
        that counting the pool as one group would promise too much.
        """
        if self.binding.layout.num_groups < 2:
            return self.num_gpu_blocks
        return int(self.max_concurrency * -(-self.resolved.max_model_len // self.block_size))

    def usage_of(self, num_requests: int, num_tokens: int) -> float:
        """Share of the blocks that so many requests of so many tokens hold (at most 1)."""
        needed = self.binding.layout.blocks_per_request(num_tokens, self.resolved.in_flight_tokens)
        return min(1.0, num_requests * needed / self.num_gpu_blocks) if self.num_gpu_blocks else 1.0

    def concurrency_at(self, num_tokens: int) -> float:
        """Requests of `num_tokens` that the blocks hold at once."""
        needed = self.binding.layout.blocks_per_request(num_tokens, self.resolved.in_flight_tokens)
        return self.num_gpu_blocks / needed if needed else float("inf")


def make_plan(deployment: Deployment, fitted: MemoryCoefficients | None = None) -> Plan:
    """Work out a deployment's memory; `fitted` replaces the catalogue's coefficients.

    Raises:
        ConfigError: flags that cannot be or go together, or a model whose weights or cache are not known.
    """
    resolved = resolve(deployment)
    ranks = rank_budgets(resolved, fitted or coefficients())
    binding = min(ranks, key=lambda rank: (rank.num_blocks() if rank.layout.block_bytes else 1 << 62, rank.rank))
    override = deployment.num_gpu_blocks_override
    blocks = [
        override if override is not None else binding.num_blocks(size)
        for size in (binding.available_bytes, binding.available_low, binding.available_high)
    ]
    length, in_flight = resolved.max_model_len, resolved.in_flight_tokens
    needed = binding.layout.blocks_per_request(length, in_flight)
    logged = binding.layout.blocks_logged(length, in_flight)
    tokens = [_logged_tokens(resolved, binding, count, logged) for count in blocks]
    reserved = 1 if version_fact("null_block_is_reserved_at_start", resolved.defaults.version) else 0
    block_bytes = binding.layout.block_bytes
    missing = (needed + reserved) * block_bytes - (
        binding.available_bytes if override is None else blocks[0] * block_bytes
    )
    return Plan(
        resolved=resolved,
        ranks=ranks,
        binding_rank=binding.rank,
        num_gpu_blocks=blocks[0],
        blocks_per_request=needed,
        kv_bytes_per_token=_bytes_per_token(resolved, deployment.tensor_parallel_size),
        kv_cache_tokens=Range(*tokens),
        max_concurrency=blocks[0] / logged if logged else float("inf"),
        max_model_len_that_fits=min(
            binding.layout.longest_request(max(0, blocks[0] - reserved), in_flight),
            deployment.model.max_model_len or 1 << 40,
        ),
        shortfall_bytes=max(0, missing),
    )


def _bytes_per_token(resolved: Resolved, tp: int) -> int:
    deployment, model = resolved.deployment, resolved.deployment.model
    cached = replace(model, layers=as_cached(model.layers, resolved.defaults.version))
    return cached.kv_bytes_per_token(deployment.kv_cache_dtype, tp)


def _logged_tokens(resolved: Resolved, binding: RankBudget, num_blocks: int, needed: int) -> int:
    """What the version prints as KV cache size: blocks by group before 0.21, concurrency times length since."""
    layout = binding.layout
    if not layout.groups:
        return 0
    if version_fact("logged_tokens_are_capacity", resolved.defaults.version) and needed:
        return int(num_blocks / needed * resolved.max_model_len)
    return num_blocks // layout.num_groups * layout.smallest_block_size
