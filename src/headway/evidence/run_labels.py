"""What a label says of the run that stands under it: `c4`, `p16`, `osl100`, `pp512`, `eager+mtp`, `before`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headway.evidence.figure_names import percentile_label
from headway.evidence.run_rows import Run

_NUMBERED = re.compile(r"([a-zA-Z]+)[ _=-]?(\d+(?:\.\d+)?)")
_CONCURRENCY = frozenset(("c", "p", "n", "conc", "concurrency", "users", "parallel", "bs", "clients", "streams", "x"))
_PROMPT = frozenset(("pp", "isl", "in", "input", "prompt"))
_OUTPUT = frozenset(("osl", "out", "output", "tg", "gen"))
_RATE = frozenset(("rate", "rps", "qps"))
_FEATURES: dict[str, tuple[str, object]] = {
    "eager": ("enforce_eager", True),
    "graph": ("enforce_eager", False),
    "graphs": ("enforce_eager", False),
    "cudagraph": ("enforce_eager", False),
    "mtp": ("speculative_config", "mtp"),
    "eagle": ("speculative_config", "eagle"),
    "eagle3": ("speculative_config", "eagle3"),
    "ngram": ("speculative_config", "ngram"),
    "medusa": ("speculative_config", "medusa"),
    "spec": ("speculative_config", "on"),
    "speculation": ("speculative_config", "on"),
    "speculative": ("speculative_config", "on"),
    "nospec": ("speculative_config", None),
    "chunked": ("enable_chunked_prefill", True),
    "unchunked": ("enable_chunked_prefill", False),
    "apc": ("enable_prefix_caching", True),
    "prefix": ("enable_prefix_caching", True),
}
_ABSENT: dict[str, object] = {"speculative_config": None, "enable_chunked_prefill": False,
                              "enable_prefix_caching": False, "enforce_eager": False}  # fmt: skip
"""What a label without the feature means, where labels beside it name it."""
_PLAIN = frozenset(("base", "baseline", "default", "none", "off", "plain"))


def are_percentiles(labels: Iterable[str]) -> bool:
    """Whether labels are statistics of one figure, such as p50 and p99, rather than runs."""
    names = list(labels)
    numbers = {name.lower() for name in names}
    told = all(percentile_label(name) is not None for name in names)
    return told and bool(names) and (len(names) == 1 or bool(numbers & {"p50", "p90", "p95", "p99", "mean", "avg"}))


def are_runs(labels: Iterable[str]) -> bool:
    """Whether every label is one of runs."""
    names = list(labels)
    return bool(names) and all(_is_run(name) for name in names)


def _is_run(label: str) -> bool:
    if re.fullmatch(r"\d+(?:\.\d+)?", label):
        return True
    match = _NUMBERED.fullmatch(label)
    if match is not None and match[1].lower() in _CONCURRENCY | _PROMPT | _OUTPUT | _RATE:
        return True
    words = _words(label)
    return bool(words) and all(word in _FEATURES or word in _PLAIN for word in words)


def run_of_label(label: str, beside: Sequence[str], *, has_rate: bool, speculates: bool = False) -> Run:
    """What a label says.

    Args:
        beside: all labels of the same table: a feature that one names is absent from those that do not.
        has_rate: the load is an open loop, so that bare numbers count something else than clients.
        speculates: figures of speculative decoding stand beside, so that `with` and `without` speak of it.
    """
    run = Run()
    match = _NUMBERED.fullmatch(label)
    if re.fullmatch(r"\d+(?:\.\d+)?", label):
        if has_rate:
            run.settings["variant"] = float(label) if "." in label else int(label)
        else:
            run.concurrency = float(label)
    elif match is not None and (word := match[1].lower()) in _CONCURRENCY | _PROMPT | _OUTPUT | _RATE:
        value = float(match[2])
        field = (
            "concurrency"
            if word in _CONCURRENCY
            else "mean_prompt_tokens"
            if word in _PROMPT
            else "mean_output_tokens"
            if word in _OUTPUT
            else "requests_per_s"
        )
        setattr(run, field, value)
    elif speculates and label.lower() in ("with", "without", "on", "off"):
        run.settings["speculative_config"] = "on" if label.lower() in ("with", "on") else None
    else:
        run.settings.update(_features(label, beside))
    return run


def _features(label: str, beside: Sequence[str]) -> dict[str, object]:
    """Settings that a label names, and those that only its neighbours name."""
    words = _words(label)
    if not words or any(word not in _FEATURES and word not in _PLAIN for word in words):
        return {"variant": label}
    settings = dict(_FEATURES[word] for word in words if word in _FEATURES)
    named = {_FEATURES[word][0] for other in beside for word in _words(other) if word in _FEATURES}
    return settings | {name: _ABSENT[name] for name in sorted(named - set(settings))}


def _words(label: str) -> list[str]:
    return [word for word in re.split(r"[+_\s,/&-]+", label.lower()) if word]
