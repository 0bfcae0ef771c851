"""What is asked of an engine: requests with an arrival and two lengths, and how they are offered."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from headway.errors import WorkloadError

Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a workload: when it comes and how long it is. It carries no text and no token ids.

    Args:
        arrival_s: seconds since the start of the workload, 0 or more.
        num_prompt_tokens: at least 1.
        num_output_tokens: tokens that will be generated, at least 1.
        request_id: the trace's own name for it, if it has one.
        block_keys: identity of the leading prompt tokens, `block_key_tokens` at a time. Equal keys mean equal
            tokens in that stretch and in all before it; the last key may cover a stretch that the prompt does
            not fill.
        block_key_tokens: tokens that one key covers; 0 without keys.
        keys_cover_output: the keys go on into the output, as where a later turn's prompt repeats it.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    request_id: str | None = None
    block_keys: tuple[Hashable, ...] = ()
    block_key_tokens: int = 0
    row: int = field(default=0, compare=False)
    """Row of the file that it was read from; 0 if it was not."""
    keys_cover_output: bool = False

    def arriving_at(self, arrival_s: float) -> TraceRequest:
        """The same request at another instant; faster than `dataclasses.replace`, which matters for millions."""
        return TraceRequest(
            arrival_s,
            self.num_prompt_tokens,
            self.num_output_tokens,
            self.request_id,
            self.block_keys,
            self.block_key_tokens,
            self.row,
            self.keys_cover_output,
        )

    def keys_at(self, block_size: int) -> Sequence[Hashable]:
        """Keys of the leading full KV blocks of `block_size` tokens that the block keys cover, as `SyntheticContent`
        takes them.

        A key that covers several blocks becomes `(key, 0)`, `(key, 1)`, …: a Mooncake hash_id (512 tokens)
        gives 32 of them at block size 16. Where sizes do not divide, a block takes the key in which it ends.
        """
        known = self.num_prompt_tokens + (self.num_output_tokens if self.keys_cover_output else 0)
        covered = min(len(self.block_keys) * self.block_key_tokens, known)
        num_blocks = covered // block_size
        if self.block_key_tokens == block_size:
            return self.block_keys[:num_blocks]
        return _SplitKeys(self.block_keys, self.block_key_tokens, block_size, num_blocks)


class _SplitKeys(Sequence[Hashable]):
    """Keys at another block size, made on demand: a 128k prompt would otherwise cost 8,000 tuples."""

    __slots__ = ("_block_size", "_keys", "_num_blocks", "_tokens_per_key")

    def __init__(self, keys: tuple[Hashable, ...], tokens_per_key: int, block_size: int, num_blocks: int) -> None:
        self._keys = keys
        self._tokens_per_key = tokens_per_key
        self._block_size = block_size
        self._num_blocks = num_blocks

    def __len__(self) -> int:
        return self._num_blocks

    @overload
    def __getitem__(self, index: int) -> Hashable: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hashable]: ...
    def __getitem__(self, index: int | slice) -> Hashable | Sequence[Hashable]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._num_blocks)))
        i = index + self._num_blocks if index < 0 else index
        if not 0 <= i < self._num_blocks:
            raise IndexError(index)
        source = ((i + 1) * self._block_size - 1) // self._tokens_per_key
        return (self._keys[source], i - source * self._tokens_per_key // self._block_size)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests and how they are offered.

    `open`: each request comes at its own instant whatever the engine does (arrival rate). `closed`:
    `concurrency` clients, each of which sends its next request when its last one has ended; arrivals in the
    trace are ignored. The two give different answers on the same requests, so a report always says which it
    was.

    Raises:
        WorkloadError: no requests, or a closed loop without a concurrency, or an open one with it.
    """

    requests: Sequence[TraceRequest]
    loop: Loop = "open"
    concurrency: int | None = None

    def __post_init__(self) -> None:
        if not self.requests:
            raise WorkloadError("The workload has no requests.")
        if self.loop == "closed" and (self.concurrency is None or self.concurrency < 1):
            raise WorkloadError("A closed loop needs a concurrency of at least 1.", hint="Give --concurrency.")
        if self.loop == "open" and self.concurrency is not None:
            raise WorkloadError("An open loop has no concurrency: its requests come at their own instants.")

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.num_prompt_tokens for request in self.requests)

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(request.num_output_tokens for request in self.requests)

    @property
    def max_request_tokens(self) -> int:
        """Length of the longest request, prompt and output together."""
        return max(request.num_prompt_tokens + request.num_output_tokens for request in self.requests)
