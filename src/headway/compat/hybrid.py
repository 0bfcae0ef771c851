"""How much of a prompt a prefix cache of whole blocks can serve."""

from __future__ import annotations

from headway.errors import ConfigError


def largest_hit_ratio(num_prompt_tokens: int, block_size: int) -> float:
    """Share of a repeated prompt that whole cached blocks cover: floor(P / B) * B / P.

    In hybrid models B is hundreds to thousands of tokens; a prompt shorter than a block never hits.

    Raises:
        ConfigError: a size below 1.
    """
    if num_prompt_tokens < 1 or block_size < 1:
        raise ConfigError("Prompt length and block size must be at least 1.")
    return num_prompt_tokens // block_size * block_size / num_prompt_tokens
