"""The deployment that a diagnosis is about: its flags as given or as logged, resolved, beside what the engine shows."""

from __future__ import annotations

import contextlib
import re
import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.catalog.accelerators import find_accelerator
from headway.catalog.models import find_model
from headway.catalog.versions import parse_version
from headway.compat.sizing import plan_flags
from headway.deployment.effective import Effective, Setting, resolve_effective
from headway.deployment.invocation import Invocation
from headway.deployment.read import MAX_BYTES, read_file
from headway.deployment.read import read_text as read_deployment
from headway.errors import ConfigError, HeadwayError, InputError
from headway.evidence.engine import EngineFacts
from headway.evidence.files import read_text
from headway.planner import Deployment, Plan, make_plan

_SEEN = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype",
         "enable_prefix_caching", "block_size")  # fmt: skip
"""Settings that the engine itself tells, in the names of its facts."""
_REMARK = re.compile(r"\s\([^(){}$'\"]{1,200}\)(?=\s|$)")
"""What people write beside a flag, such as `(default)`."""
_CHANGE = re.compile(r"(?<=\s)\S+ (?:->|→|=>) (\S+)")
"""`0.80 -> 0.85`: what is there now is the second."""
_WORDS_MAX_BYTES = 20_000
"""A file in none of the known forms may hold a command of another engine, or flags with words around them."""
_IMAGE = re.compile(r"[\w.-]+(?:/[\w.-]+)*:v?\d+\.\d+[\w.-]*")
"""The name of a container image with a release for its tag."""
_CATALOGUE_NAME = re.compile(r"\w[\w.-]{0,99}(/[\w.-]{1,100})?")


@dataclass(frozen=True, slots=True)
class Subject:
    """The resolved deployment, None where no flags are known; `words` is what was given as text, not as a file."""

    effective: Effective | None = None
    notes: tuple[str, ...] = ()
    words: str | None = None


@dataclass(slots=True)
class _Reading:
    facts: EngineFacts
    logged: str = ""
    notes: list[str] = field(default_factory=list)
    words: str | None = None


def read_subject(
    deployment: Path | str | None,
    *,
    logged: str = "",
    facts: EngineFacts | None = None,
    engine_version: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
) -> Subject:
    """Read the flags and resolve them; what cannot be used becomes a note.

    Args:
        deployment: a file, or words: flags with or without the command before them.
        logged: lines about a start, whose arguments count where no deployment is given.
        facts: what the engine tells; its version wins over an image's tag.

    Raises:
        InputError: a file that does not exist or is binary.
    """
    reading = _Reading(facts or EngineFacts(), logged)
    invocations = _invocations(reading, deployment, model)
    if not invocations and (model or engine_version or gpu):
        invocations = read_deployment(f"vllm serve {shlex.quote(model or 'model')}")
    effective = None
    if invocations:
        effective = _resolve(reading, _choose(reading, invocations), engine_version, gpu, model)
    if effective is not None:
        _observe(effective, reading)
    return Subject(effective, tuple(reading.notes), reading.words)


def _invocations(reading: _Reading, deployment: Path | str | None, model: str | None) -> list[Invocation]:
    if deployment is None:
        return _logged(reading)
    path = _as_file(deployment)
    if path is None:
        reading.words = str(deployment)
        return _from_words(reading, reading.words, model)
    text = read_text(path, MAX_BYTES)
    try:
        return read_file(path)
    except HeadwayError as error:
        if len(text) <= _WORDS_MAX_BYTES and (found := _from_words(_Reading(reading.facts, ""), text, model)):
            reading.words = text
            return found
        reading.notes.append(f"The deployment {path.name} is not used: {error}")
        return []


def _logged(reading: _Reading) -> list[Invocation]:
    """The last start whose arguments the log shows; an empty list if it shows none."""
    if not reading.logged:
        return []
    with contextlib.suppress(HeadwayError), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return read_deployment(reading.logged, "engine.log")[-1:]
    return []


def _as_file(deployment: Path | str) -> Path | None:
    """A path, unless it is words: those hold blanks or begin with a dash."""
    if isinstance(deployment, Path):
        return deployment
    is_words = "--" in deployment or len(deployment.split()) > 1 or bool(_IMAGE.fullmatch(deployment.strip()))
    with contextlib.suppress(OSError, ValueError):
        if Path(deployment).is_file():
            return Path(deployment)
    return None if is_words or not deployment.strip() else Path(deployment)


def _from_words(reading: _Reading, words: str, model: str | None) -> list[Invocation]:
    """Flags with the command before them, or without."""
    plain = _CHANGE.sub(r"\1", _REMARK.sub(" ", " ".join(words.split())))
    attempts = [words, f"vllm serve {shlex.quote(model or 'model')} {plain}"]
    if _IMAGE.fullmatch(words.strip()):
        attempts = [f"docker run {words.strip()} --model {shlex.quote(model or 'model')}"]
    for text in attempts if "--" in words or "vllm" in words else attempts[:1]:
        try:
            return read_deployment(text)
        except HeadwayError:
            continue
    if "--" in words:
        reading.notes.append(f"No flags of vLLM were read from: {words[:200]}")
    return []


def _choose(reading: _Reading, invocations: list[Invocation]) -> Invocation:
    """Of several starts the one of the model that the engine names, else the first."""
    chosen = invocations[0]
    if len(invocations) > 1:
        named = [item for item in invocations if reading.facts.model and reading.facts.model in _words_of(item)]
        chosen = named[0] if named else chosen
        place = f"line {chosen.line}" if chosen.line else chosen.name or "the first"
        reading.notes.append(f"The deployment has {len(invocations)} starts of vLLM; judged is that of {place}.")
    return chosen


def _words_of(invocation: Invocation) -> list[str]:
    return [word.text for word in invocation.words] + [str(item.value) for item in invocation.settings.values()]


def _resolve(
    reading: _Reading, invocation: Invocation, engine_version: str | None, gpu: str | None, model: str | None
) -> Effective | None:
    version = _version(reading, engine_version)
    card = _known(reading, find_accelerator, "GPU", gpu) if gpu != "cpu" else gpu
    named = _known(reading, find_model, "model", model)
    try:
        effective = resolve_effective(invocation, engine_version=version, accelerator=card, model=named)
        shown = reading.facts.model
        if effective.model is None and model is None and _is_safe(shown):
            with contextlib.suppress(ConfigError):
                effective = resolve_effective(invocation, engine_version=version, accelerator=card, model=shown)
    except HeadwayError as error:
        reading.notes.append(f"The deployment cannot be resolved: {error}")
        return None
    reading.notes += [f"The deployment: {problem.message}." for problem in effective.problems[:10]]
    return effective


def _is_safe(name: str | None) -> bool:
    """A name that evidence shows is looked up in the catalogue only, never as a file."""
    return bool(name and _CATALOGUE_NAME.fullmatch(name) and not name.endswith(".json") and not Path(name).exists())


def _known(reading: _Reading, find: Callable[[str], object], what: str, name: str | None) -> str | None:
    if name is None:
        return None
    try:
        find(name)
    except InputError as error:
        reading.notes.append(f"The {what} {name} is not known, and nothing is planned with it: {error.message}")
        return None
    return name


def _version(reading: _Reading, given: str | None) -> str | None:
    """The version given or logged; of a text such as `0.10.x (V1)` or `0.6/0.7` the first number."""
    shown = given or reading.facts.version
    if shown is None:
        return None
    try:
        parse_version(shown)
        return shown
    except ConfigError:
        match = re.search(r"(?<![\d.])0\.\d{1,2}(?:\.\d{1,2})?(?![\d.]*\d)", shown)
        if match is None:
            reading.notes.append(f"{shown!r} is no version of vLLM; the reference release is assumed.")
            return None
        reading.notes.append(f"{shown!r} is taken for vLLM {match[0]}.")
        return match[0]


def _observe(effective: Effective, reading: _Reading) -> None:
    """What the running engine tells outranks what its flags should have made of it."""
    seen: dict[str, tuple[Any, str]] = {}
    for invocation in _logged(reading):
        for name, item in invocation.settings.items():
            setting = effective.settings.get(name)
            if setting is not None and setting.is_written and isinstance(item.value, bool | int | float):
                seen[name] = (item.value, "its log")
    for name in _SEEN:
        value = getattr(reading.facts, name)
        if value is not None and value != "auto":
            seen[name] = (value, "the running engine")
    for name, (value, where) in seen.items():
        setting = effective.settings.get(name)
        if setting is not None and setting.value == value:
            continue
        if setting is not None and setting.is_written:
            reading.notes.append(f"The deployment says {name} {setting.value}, {where} {value}; the latter is used.")
        is_written = setting is not None and setting.is_written
        written, line = (setting.written, setting.line) if setting is not None else (None, 0)
        effective.settings[name] = Setting(name, value, written, "observed", f"{where} says so", line, is_written)
        effective.facts.values[name] = value


def plan_of(effective: Effective | None, facts: EngineFacts) -> tuple[Plan | None, list[str]]:
    """The memory plan, with the KV blocks that the engine tells; None with a note where it cannot be made."""
    if effective is None or effective.model is None or effective.accelerator is None:
        return None, []
    deployment = Deployment(effective.model, effective.accelerator, engine_version=effective.version_text)
    try:
        planned = replace(deployment, **plan_flags(effective))
        blocks = facts.num_gpu_blocks
        if blocks is None and facts.kv_cache_tokens is None:
            return make_plan(planned), []
        if blocks is None:
            plan = make_plan(planned)
            tokens = facts.kv_cache_tokens or 0
            likely = plan.kv_cache_tokens.likely
            blocks = round(plan.num_gpu_blocks * tokens / likely) if likely > 0 else tokens // plan.block_size
        return make_plan(replace(planned, num_gpu_blocks_override=max(1, blocks))), []
    except (InputError, TypeError, ValueError, ArithmeticError) as error:
        return None, [f"The deployment's memory cannot be planned: {error}"]
