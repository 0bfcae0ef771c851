"""The buffers of sparse attention, which hold what a whole prompt's keys are gathered into while it is prefilled.

vLLM makes them while it profiles, as large as max_model_len asks for, and keeps them: the one case in which the length
takes KV memory. MoE layers use the same buffer.
"""

from __future__ import annotations

from collections.abc import Iterable

from headway.catalog.architecture import CompressedAttention, LatentAttention, Layer, Mixer
from headway.catalog.defaults import version_fact
from headway.catalog.versions import Version

_PREFILLS_AT_ONCE = 4
"""Requests whose compressed keys are gathered together."""

_LATENT_LENGTHS = 5
"""Lengths of latent vectors that are gathered in 16 bits where the cache is in FP8."""


def workspace_bytes(
    layers: Iterable[Layer], *, max_model_len: int, num_tokens: int, tp: int, kv_cache_dtype: str, version: Version
) -> int:
    """The largest buffer that any layer asks for; 0 without sparse attention.

    Args:
        num_tokens: of one step.
    """
    lengths = version_fact("index_workspace_lengths", version)
    mixers = {layer.mixer for layer in layers if layer.mixer is not None}
    return max(
        (_workspace(mixer, lengths, max_model_len, num_tokens, tp, kv_cache_dtype) for mixer in mixers), default=0
    )


def _workspace(mixer: Mixer, lengths: int, max_model_len: int, num_tokens: int, tp: int, kv_cache_dtype: str) -> int:
    if isinstance(mixer, CompressedAttention):
        entries = -(-max_model_len // mixer.ratio) if mixer.ratio else 0
        gathered = _PREFILLS_AT_ONCE * (entries + mixer.window + num_tokens) * mixer.head_dim * 2
        return max(gathered, lengths * entries * mixer.index_entry_bytes)
    if isinstance(mixer, LatentAttention) and mixer.num_index_heads:
        width = 2 * mixer.kv_elements_per_token()
        queries = num_tokens * mixer.num_heads // tp * width
        latents = _LATENT_LENGTHS * max_model_len * width if kv_cache_dtype.startswith("fp8") else 0
        return max(queries + latents, lengths * max_model_len * mixer.index_bytes_per_token)
    return 0
