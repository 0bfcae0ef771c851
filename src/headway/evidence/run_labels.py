"""What a label says of the run that stands under it: `c4`, `p16`, `osl100`, `pp512`, `eager+mtp`, `before`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from headway.evidence.figure_names import percentile_label
from headway.evidence.run_rows import Run, is_setting

_NUMBERED = re.compile(r"([a-zA-Z]+)[ _=-]?(\d+(?:\.\d+)?)")
_CONCURRENCY = frozenset(
    ("c", "p", "n", "np", "conc", "concurrency", "users", "parallel", "bs", "clients", "streams", "x")
)
_PROMPT = frozenset(("pp", "isl", "in", "input", "prompt"))
_OUTPUT = frozenset(("osl", "out", "output", "tg", "gen"))
_RATE = frozenset(("rate", "rps", "qps"))
_FEATURES: dict[str, tuple[str, object]] = {
    "eager": ("enforce_eager", True),
    "graph": ("enforce_eager", False),
    "graphs": ("enforce_eager", False),
    "cudagraphs": ("enforce_eager", False),
    "cudagraph": ("enforce_eager", False),
    "mtp": ("speculative_config", "mtp"),
    "eagle": ("speculative_config", "eagle"),
    "eagle3": ("speculative_config", "eagle3"),
    "ngram": ("speculative_config", "ngram"),
    "medusa": ("speculative_config", "medusa"),
    "spec": ("speculative_config", "on"),
    "speculation": ("speculative_config", "on"),
    "speculative": ("speculative_config", "on"),
    "dflash": ("speculative_config", "dflash"),
    "suffix": ("speculative_config", "suffix"),
    "nospec": ("speculative_config", None),
    "chunked": ("enable_chunked_prefill", True),
    "unchunked": ("enable_chunked_prefill", False),
    "apc": ("enable_prefix_caching", True),
    "prefix": ("enable_prefix_caching", True),
    "caching": ("enable_prefix_caching", True),
    "tp": ("tensor_parallel_size", "on"),
}
_SPECULATES = frozenset(("spec", "speculation", "speculative"))
"""They say less than the method's name beside them."""
_SWITCHES = {"with": True, "on": True, "enabled": True, "true": True,
             "without": False, "off": False, "disabled": False, "false": False}  # fmt: skip
_ABSENT: dict[str, object] = {"speculative_config": None, "enable_chunked_prefill": False,
                              "enable_prefix_caching": False, "enforce_eager": False,
                              "tensor_parallel_size": 1}  # fmt: skip
"""What a label without the feature means, where labels beside it name it."""
_PLAIN = frozenset(("base", "baseline", "default", "none", "off", "plain", "normal", "vanilla", "original", "standard"))
_NOT = frozenset(("no", "without", "wo", "w/o", "non", "not", "disable", "disabled", "minus"))
_FILLERS = frozenset((
    "with", "w", "and", "enable", "enabled", "use", "using", "on", "enforce", "mode", "cuda", "decode", "decoding",
    "prefill", "draft", "caching", "cache", "model", "full", "piecewise", "only", "capture", "captured",
))  # fmt: skip
_SIZE = re.compile(r"(?:k|n|x|len|tokens?)?[=:]?\d+")
"""How many draft tokens, beside a feature's name."""
_PARALLEL = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
_SINGLE = frozenset(("single stream", "single user", "single request", "sequential", "one by one"))
"""Labels of a client that sends one request at a time."""
_GPUS = re.compile(r"(?:(\d{1,3})|(single|one))[ x_-]*(?:gpus?|cards?)", re.IGNORECASE)
_SIZED = re.compile(r"(?:--)?([a-zA-Z][a-zA-Z_ -]*?)[_ =:-]*(\d+(?:\.\d+)?)")
"""A setting and its value, such as `max_num_seqs_32` or `tp2`."""


def are_percentiles(labels: Iterable[str]) -> bool:
    """Whether labels are statistics of one figure, such as p50 and p99, rather than runs."""
    names = list(labels)
    numbers = {name.lower() for name in names}
    told = all(percentile_label(name) is not None for name in names)
    return told and bool(names) and (len(names) == 1 or bool(numbers & {"p50", "p90", "p95", "p99", "mean", "avg"}))


def are_runs(labels: Iterable[str], *, speculates: bool = False) -> bool:
    """Whether every label is one of runs; `with` and `without` where it is known what they speak of."""
    names = list(labels)
    switches = speculates and all(name.lower() in _SWITCHES for name in names)
    return bool(names) and (switches or all(_is_run(name) for name in names))


def is_load_label(label: str) -> bool:
    """Whether a label tells of the load: `osl100`, `c4`."""
    match = _NUMBERED.fullmatch(label)
    return match is not None and match[1].lower() in _CONCURRENCY | _PROMPT | _OUTPUT | _RATE


def _is_run(label: str) -> bool:
    if re.fullmatch(r"\d+(?:\.\d+)?", label):
        return True
    if is_load_label(label):
        return True
    if label.replace("_", " ").lower() in _SINGLE:
        return True
    return _setting_of(label) is not None or _features_of(label) is not None


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
    elif label.replace("_", " ").lower() in _SINGLE:
        run.concurrency = 1.0
    elif speculates and label.lower() in _SWITCHES:
        run.settings["speculative_config"] = "on" if _SWITCHES[label.lower()] else None
    elif (sized := _setting_of(label)) is not None:
        run.settings[sized[0]] = sized[1]
    else:
        run.settings.update(_features(label, beside))
    return run


def _features(label: str, beside: Sequence[str]) -> dict[str, object]:
    """Settings that a label names, and those that only its neighbours name."""
    settings = _features_of(label)
    if settings is None:
        return {"variant": label}
    named = {name for other in beside for name in (_features_of(other) or {})}
    return settings | {name: _ABSENT[name] for name in sorted(named - set(settings))}


def _features_of(label: str) -> dict[str, object] | None:
    """Settings by the features that a label names, or denies; None where it has words of another kind."""
    settings: dict[str, object] = {}
    is_denied = False
    last: str | None = None
    words = _words(label)
    for word in words:
        if word in _FEATURES:
            name, value = _FEATURES[word]
            if is_denied:
                value = not value if isinstance(value, bool) else _ABSENT[name]
            if name not in settings or word not in _SPECULATES:
                settings[name] = value
            last, is_denied = name, False
        elif word in ("off", "disabled") and last is not None:
            settings[last] = _ABSENT[last]
        elif word in _NOT:
            is_denied = True
        elif word not in _PLAIN | _FILLERS and not (last is not None and _SIZE.fullmatch(word)):
            return None
    has_meaning = bool(settings) or any(word in _PLAIN for word in words)
    return settings if has_meaning and not is_denied else None


def feature_change(text: str) -> tuple[dict[str, object], dict[str, object]] | None:
    """Settings (after, before) of a change that a sentence names by one feature: `enabled MTP`, `no eager mode`."""
    settings: dict[str, object] = {}
    is_denied = False
    for word in _words(text):
        if word in _NOT or word in ("removed", "dropped"):
            is_denied = True
        elif word in _FEATURES:
            name, value = _FEATURES[word]
            settings.setdefault(name, _ABSENT[name] if is_denied else value)
    if len(settings) != 1:
        return None
    name, value = next(iter(settings.items()))
    absent = _ABSENT[name]
    other = absent if value != absent else True if isinstance(absent, bool) else "on"
    return {name: value}, {name: other}


def _setting_of(label: str) -> tuple[str, float] | None:
    """A scheduler's setting that a label gives a value."""
    count = _GPUS.fullmatch(label.strip())
    if count is not None:
        return "tensor_parallel_size", int(count[1] or 1)
    match = _SIZED.fullmatch(label.strip())
    if match is None:
        return None
    name = re.sub(r"[ -]+", "_", match[1].strip().lower())
    value = float(match[2]) if "." in match[2] else int(match[2])
    if name in _PARALLEL:
        return _PARALLEL[name], value
    return (name, value) if "_" in name and is_setting(name) else None


def _words(label: str) -> list[str]:
    text = re.sub(r"(?<![a-z])w/o(?![a-z])", "without ", label.lower())
    text = re.sub(r"\b(mtp|eagle|ngram|medusa|dflash)[-_ ]?(\d+)\b", r"\1 \2", re.sub(r"n-gram", "ngram", text))
    return [word for word in re.split(r"[+_\s,/&()\[\]-]+", text.replace("eagle 3", "eagle3")) if word]
