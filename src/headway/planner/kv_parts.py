"""Groups of layers over one pool of KV blocks, and the rules of a version that form them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PastKind = Literal["full", "sliding", "chunked", "state"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """`num_groups` groups of layers that keep their past in one way."""

    kind: PastKind
    num_layers: int
    num_groups: int
    block_size: int
    """Tokens in a block; for recurrent states a block is one state."""
    window: int = 0
    page_bytes: int = 0
    """Pages of all these layers on this GPU; 0 where those of all groups are as large."""

    def blocks_per_request(self, num_tokens: int, in_flight_tokens: int, state_blocks: int) -> int:
        """Blocks that one request of `num_tokens` holds at most, in all groups of this kind."""
        if self.kind == "state":
            return self.num_groups * state_blocks
        if self.kind == "sliding":
            kept = min(self.window - 1 + in_flight_tokens, num_tokens)
            return self.num_groups * (-(-kept // self.block_size) + 1)
        kept = min(self.window + in_flight_tokens, num_tokens) if self.kind == "chunked" else num_tokens
        return self.num_groups * -(-kept // self.block_size)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Groups over one pool. `block_bytes` is one pool block on one GPU; `state_blocks` what a request's state takes.

    `counts_bytes`: the version's log counts a request's bytes in blocks of the first group, not its blocks.
    `token_block_size`: tokens in a block of the layers that keep all, where others have smaller blocks.
    """

    groups: tuple[KVGroup, ...]
    block_bytes: int
    state_blocks: int = 1
    counts_bytes: bool = False
    token_block_size: int | None = None

    @property
    def block_size(self) -> int:
        """Tokens in a block of the groups that keep tokens."""
        return self.token_block_size or self.smallest_block_size

    @property
    def smallest_block_size(self) -> int:
        """The fewest tokens in a block of any group that keeps tokens."""
        return min((group.block_size for group in self.groups if group.kind != "state"), default=1)

    @property
    def num_groups(self) -> int:
        """Groups in all."""
        return sum(group.num_groups for group in self.groups)

    def blocks_per_request(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Pool blocks that a request of `num_tokens` needs at its longest."""
        return sum(group.blocks_per_request(num_tokens, in_flight_tokens, self.state_blocks) for group in self.groups)

    def blocks_logged(self, num_tokens: int, in_flight_tokens: int) -> int:
        """The blocks of a request by which the version's log divides the pool."""
        if not self.counts_bytes:
            return self.blocks_per_request(num_tokens, in_flight_tokens)
        total = sum(
            group.blocks_per_request(num_tokens, in_flight_tokens, self.state_blocks)
            // group.num_groups
            * group.page_bytes
            for group in self.groups
        )
        return -(-total // self.groups[0].page_bytes)

    def token_blocks(self, num_tokens: int) -> int:
        """Pool blocks of the groups that keep every one of a request's tokens."""
        return sum(group.blocks_per_request(num_tokens, 0, 0) for group in self.groups if group.kind == "full")

    def longest_request(self, num_blocks: int, in_flight_tokens: int) -> int:
        """The most tokens that one request can have in a pool of `num_blocks`; 0 if not even one token fits."""
        low, high = 0, 1
        while high < 1 << 40 and self.blocks_per_request(high, in_flight_tokens) <= num_blocks:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_per_request(middle, in_flight_tokens) <= num_blocks:
                low = middle
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """What a version does with layers that keep their past in different ways.

    `hybrid`: they get groups of their own; else what forgets is sized as full attention. `chunked_groups`: so do
    chunk-local layers. `latent_step`: blocks of latent attention beside states grow in steps of so many tokens.
    `pad_below`: kinds whose numbers of layers differ by less than this factor get one group each, the smaller padded.
    `state_blocks`: blocks of recurrent state that one request holds (1, or 2 where states are cached).
    `compressed_blocks`: how a compressed cache's groups share a block (None: the version has no such cache);
    `compressed_requests_in_bytes`: its log counts a request's bytes; `compressed_auto_is_fp8`: `auto` means FP8 to it.
    """

    hybrid: bool = True
    chunked_groups: bool = True
    latent_step: int = 128
    pad_below: float = 1.5
    state_blocks: int = 1
    compressed_blocks: Literal["tuples", "slots", "stacked", "balanced"] | None = "balanced"
    compressed_requests_in_bytes: bool = False
    compressed_auto_is_fp8: bool = True
