"""A limit on outputs: below what requests without one reach, else it changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from headway.doctor.diagnosis import BottleneckKind, Fix
from headway.doctor.fixes.values import change, round_down
from headway.doctor.rules.base import Case

_CAPPED_OUTPUT = 4096
_LEAST_POOL = 2048
_LEAST_OUTPUT = 16
_SHARE_OF_POOL = 1 / 8
_SHARE_OF_REACHED = 0.5
"""A cap above half of what outputs reach leaves most of what they hold."""


def cap_tokens(case: Case, kind: BottleneckKind, reached: float | None = None) -> Iterator[Fix]:
    """A limit on outputs, from the client or as the server's default.

    Args:
        reached: tokens of the outputs that nothing but a limit ended, where that is known.
    """
    to = _cap(case, reached)
    if to is None:
        return
    reason = "Requests without max_tokens may generate up to max_model_len, and hold their blocks all the while."
    yield change("max_tokens", None, to, reason, kind, "Longer answers are cut.")
    wanted = {"max_new_tokens": to}
    reason = "The same as a default for every client that sends none."
    yield change("override_generation_config", None, wanted, reason, kind, "Longer answers are cut.")


def _cap(case: Case, reached: float | None) -> int | None:
    """Tokens that are usually enough, a small share of the pool, and well below what is reached now."""
    pool, length = case.settings.kv_tokens, case.settings.max_model_len
    caps = [float(_CAPPED_OUTPUT)]
    if pool and pool >= _LEAST_POOL:
        caps.append(_SHARE_OF_POOL * pool)
    if length:
        caps.append(_SHARE_OF_REACHED * (length - (case.figures.load.mean_prompt_tokens or 0.0)))
    if reached:
        caps.append(_SHARE_OF_REACHED * reached)
    most = min(caps)
    to = round_down(most, 256 if most >= 512 else 16)
    return to if to >= _LEAST_OUTPUT else None
