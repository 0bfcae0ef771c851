"""Which layers each pipeline rank holds."""

from __future__ import annotations

from collections.abc import Sequence

from headway.errors import ConfigError


def layer_partition(num_layers: int, pp: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """Layers on each rank: as given (VLLM_PP_LAYER_PARTITION), or evenly as vLLM does it.

    What is left over goes one each to the ranks before the last, from the end, since the last also has the head.

    Raises:
        ConfigError: fewer layers than ranks, or a given partition that does not add up.
    """
    if given is not None:
        if len(given) != pp or sum(given) != num_layers or min(given) < 1:
            raise ConfigError(
                f"The layer partition {','.join(map(str, given))} does not split {num_layers} layers over {pp} ranks.",
                hint=f"Give {pp} numbers that add up to {num_layers}.",
            )
        return tuple(given)
    if num_layers < pp:
        raise ConfigError(f"{num_layers} layers cannot be split over {pp} pipeline ranks.")
    sizes = [num_layers // pp] * pp
    for index in range(num_layers % pp):
        sizes[pp - 2 - index if pp - 2 - index >= 0 else pp - 1] += 1
    return tuple(sizes)
