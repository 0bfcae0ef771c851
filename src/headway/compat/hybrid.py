"""How much of a prompt a prefix cache of whole blocks can serve."""

from __future__ import annotations

from headway.errors import ConfigError


def largest_hit_ratio(num_prompt_tokens: int, block_size: int, *, speculative: bool = False) -> float:
    """Share of a repeated prompt that whole cached blocks cover: floor(P / B) * B / P.

    In hybrid models B is hundreds to thousands of tokens; a prompt shorter than a block never hits. With EAGLE-like
    speculation the last matched block is computed again: max(0, floor((P - 1) / B) - 1) * B / P.

    Raises:
        ConfigError: a size below 1.
    """
    if num_prompt_tokens < 1 or block_size < 1:
        raise ConfigError("Prompt length and block size must be at least 1.")
    if speculative:
        return max(0, (num_prompt_tokens - 1) // block_size - 1) * block_size / num_prompt_tokens
    return num_prompt_tokens // block_size * block_size / num_prompt_tokens
