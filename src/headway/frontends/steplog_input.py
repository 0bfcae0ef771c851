"""Reads step-log workloads: every key is known, every value is of its kind, and the message says where not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headway.errors import WorkloadError

_MOST = 2**53
"""Larger counts would not survive in a log that other tools read as JSON numbers."""
_MOST_BLOCKS = 5_000_000


class _Kind(NamedTuple):
    """What a value must be: in words, and as a check."""

    text: str
    accepts: Callable[[Any], bool]

    def or_none(self) -> _Kind:
        return _Kind(f"{self.text}, or null", lambda value: value is None or self.accepts(value))


def _count(least: int, most: int = _MOST) -> _Kind:
    limits = f"a whole number from {least} to {most}" if most != _MOST else f"a whole number, {least} or more"
    return _Kind(limits, lambda value: type(value) is int and least <= value <= most)


_BOOLEAN = _Kind("true or false", lambda value: type(value) is bool)
_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_INTEGER = _Kind("a whole number", lambda value: type(value) is int and abs(value) <= _MOST)
_NUMBER = _Kind("a number", lambda value: type(value) in (int, float) and abs(value) <= _MOST and not math.isnan(value))
_TOKEN_IDS = _Kind(
    "a list of token ids (whole numbers, 0 or more)",
    lambda value: isinstance(value, list) and all(map(_count(0).accepts, value)),
)
_PROMPT = _Kind(
    "a non-empty list of token ids (whole numbers, 0 or more)", lambda value: bool(value) and _TOKEN_IDS.accepts(value)
)

_CONFIG: Mapping[str, tuple[Any, _Kind]] = {
    "max_num_seqs": (16, _count(1)),
    "max_num_batched_tokens": (2048, _count(1)),
    "block_size": (16, _count(1)),
    "num_blocks": (1000, _count(2, _MOST_BLOCKS)),
    "enable_prefix_caching": (False, _BOOLEAN),
    "enable_chunked_prefill": (True, _BOOLEAN),
    "long_prefill_token_threshold": (0, _count(0)),
    "policy": ("fcfs", _TEXT),
    "max_model_len": (8192, _count(1)),
    "async_scheduling": (False, _BOOLEAN),
    "watermark": (0.0, _NUMBER),
    "scheduler_reserve_full_isl": (None, _BOOLEAN.or_none()),
    "max_num_active_seqs": (None, _count(1).or_none()),
    "long_prefill_token_threshold_adaptive": (False, _BOOLEAN),
    "batch_queue": (None, _count(0).or_none()),
    "max_steps": (100_000, _count(1)),
    "show_blocks": (False, _BOOLEAN),
    "sliding_window": (None, _count(1).or_none()),
}
"""Default and kind of each setting, in the order in which a log's `config` record lists them."""

_REQUEST: Mapping[str, _Kind] = {
    "id": _Kind("a text or a whole number", lambda value: isinstance(value, str) or type(value) is int),
    "prompt_token_ids": _PROMPT,
    "max_tokens": _count(1),
    "arrival_step": _count(0).or_none(),
    "output_token_ids": _TOKEN_IDS.or_none(),
    "priority": _INTEGER.or_none(),
    "arrival_time": _NUMBER.or_none(),
    "abort_step": _count(0).or_none(),
    "cache_salt": _TEXT.or_none(),
}


def read_workload(workload: object) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings, complete, and the requests of a workload, in which keys that are null have been left out.

    Raises:
        WorkloadError: malformed; names the key and the request.
    """
    if not isinstance(workload, Mapping) or not isinstance(workload.get("requests"), list):
        raise WorkloadError('A workload is a JSON object with a list of "requests" and, if need be, a "config".')
    unknown = sorted(map(str, set(workload) - {"config", "requests", "name"}))
    if unknown:
        raise WorkloadError(f"Unknown key(s) beside config and requests: {', '.join(unknown)}.")
    settings = _read_config(workload.get("config") or {})
    return settings, list(_read_requests(workload["requests"], settings["max_model_len"]))


def _read_config(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise WorkloadError(f'"config" must be a JSON object, not {_short(given)}.')
    _refuse_unknown(given, _CONFIG, "config")
    settings = {key: given.get(key, default) for key, (default, _) in _CONFIG.items()}
    for key, (_, kind) in _CONFIG.items():
        _require(kind, settings[key], f"config.{key}")
    return settings


def _read_requests(specs: Sequence[object], max_model_len: int) -> Iterator[dict[str, Any]]:
    seen: dict[str, int] = {}
    for i, spec in enumerate(specs):
        where = f"requests[{i}]"
        if not isinstance(spec, Mapping):
            raise WorkloadError(f"{where} must be a JSON object, not {_short(spec)}.")
        _refuse_unknown(spec, _REQUEST, where)
        for key, kind in _REQUEST.items():
            _require(kind, spec.get(key), f"{where}.{key}")
        first = seen.setdefault(str(spec["id"]), i)
        if first != i:
            raise WorkloadError(f"{where}.id {_short(spec['id'])} is also that of requests[{first}].")
        num_prompt_tokens = len(spec["prompt_token_ids"])
        if num_prompt_tokens >= max_model_len:
            raise WorkloadError(
                f"{where}.prompt_token_ids has {num_prompt_tokens} tokens, but max_model_len is {max_model_len} and at "
                "least one more is to be generated.",
                hint="Shorten the prompt or raise config.max_model_len.",
            )
        yield {key: value for key, value in spec.items() if value is not None}


def _refuse_unknown(given: Mapping[Any, Any], known: Mapping[str, Any], where: str) -> None:
    unknown = sorted(map(str, set(given) - set(known)))
    if unknown:
        raise WorkloadError(f"{where} has unknown key(s): {', '.join(unknown)}.", hint=f"Known: {', '.join(known)}.")


def _require(kind: _Kind, value: object, where: str) -> None:
    if value is None and not kind.accepts(None):
        raise WorkloadError(f"{where} is missing: it must be {kind.text}.")
    if not kind.accepts(value):
        raise WorkloadError(f"{where} must be {kind.text}, not {_short(value)}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
