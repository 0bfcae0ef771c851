"""What a start of vLLM really gets: each setting's value in one exact version, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.catalog.accelerators import Accelerator, find_accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.catalog.compatibility import Row, compat_data
from headway.catalog.conditions import UNKNOWN
from headway.catalog.flags import flags_of
from headway.catalog.models import find_model
from headway.catalog.versions import Version, parse_version
from headway.config import REFERENCE_ENGINE_VERSION
from headway.deployment.arguments import Parsed, Problem, parse_arguments
from headway.deployment.chosen import chosen_defaults
from headway.deployment.facts import (
    Facts,
    environment_facts,
    model_facts,
    platform_tags,
    row_holds,
    speculation_facts,
)
from headway.deployment.invocation import Invocation, Lint
from headway.deployment.mapping import config_words
from headway.deployment.serve_words import prepare_words
from headway.deployment.words import Word
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its effective value, what was written (None if nothing), where it comes from and why.

    `source`: `command line`, `config file`, a form's own name, `default`, or `forced`.
    """

    name: str
    value: Any
    written: Any
    source: str
    reason: str
    line: int = 0
    is_written: bool = False


@dataclass(slots=True)
class Effective:
    """Everything that can be said of one start in one version."""

    invocation: Invocation
    version: Version
    version_reason: str
    engine: str
    engine_reason: str
    accelerator: Accelerator | None
    model: ModelArchitecture | None
    settings: dict[str, Setting]
    problems: list[Problem]
    parsed: Parsed
    lints: list[Lint]
    unresolved: dict[str, tuple[str, ...]]
    facts: Facts
    rows: list[Row] = field(default_factory=list)
    """Compatibility rows that changed a value."""

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))

    def value(self, name: str) -> Any:
        """A setting's effective value, or None."""
        setting = self.settings.get(name)
        return setting.value if setting else None


def resolve_effective(
    invocation: Invocation,
    *,
    engine_version: str | None = None,
    accelerator: str | None = None,
    model: str | None = None,
) -> Effective:
    """Work out the effective configuration.

    Args:
        engine_version: default: the image's tag, the log's version, else the reference release.
        accelerator: a name of the catalogue, or `cpu`; default: what the form says, else not known.
        model: a name or folder that `find_model` knows; default: the model of the deployment.

    Raises:
        ConfigError: not a version, or an accelerator that is not in the catalogue.
    """
    version, version_reason = _version(invocation, engine_version)
    lints = list(invocation.lints)
    parsed = _parse(invocation, version, lints)
    card, device = _accelerator(invocation, accelerator, parsed)
    architecture = _model(model or parsed.value("model"), explicit=model is not None)
    engine, engine_reason = _engine(version, invocation)
    facts = Facts(version, engine, asked=parsed.settings, platforms=platform_tags(card, device))
    result = Effective(
        invocation=invocation,
        version=version,
        version_reason=version_reason,
        engine=engine,
        engine_reason=engine_reason,
        accelerator=card,
        model=architecture,
        settings={},
        problems=parsed.problems,
        parsed=parsed,
        lints=lints,
        unresolved=_unresolved(parsed, invocation),
        facts=facts,
    )
    _settle(result, device)
    return result


def _version(invocation: Invocation, given: str | None) -> tuple[Version, str]:
    if given is not None:
        return parse_version(given), "given"
    if invocation.image is not None and (match := re.search(r":v?(\d+\.\d+\.\d+)", invocation.image)):
        return parse_version(match.group(1)), f"tag of the image {invocation.image}"
    if isinstance(logged := invocation.facts.get("engine_version"), str):
        try:
            return parse_version(logged), "logged"
        except ConfigError:
            pass
    return parse_version(REFERENCE_ENGINE_VERSION), "not stated; the reference release is assumed"


def _parse(invocation: Invocation, version: Version, lints: list[Lint]) -> Parsed:
    if invocation.form == "settings":
        return _check_names(invocation, version)
    words, problems = prepare_words(invocation, version, lints, _config_words)
    parsed = parse_arguments(words, version)
    parsed.problems[:0] = problems
    return parsed


def _config_words(invocation: Invocation, path: str, version: Version, lints: list[Lint]) -> list[Word] | None:
    """The words of a `--config` file that is at hand; False values that vLLM drops become lints."""
    text = invocation.config_files.get(path)
    if text is None:
        return None
    words, dropped = config_words(json.loads(text), version, invocation.form)
    for key in dropped:
        name = key.replace("-", "_")
        release = ".".join(map(str, version))
        message = f"{key}: false is silently dropped by vLLM {release} when it reads the file: the default stays. "
        hint = f"Write no-{key}: true." if f"--no-{key}" in _negations(version) else "Leave the key out."
        lints.append(Lint("config-false-dropped", "error", message + hint, 0, (name,)))
    return words


def _negations(version: Version) -> set[str]:
    return {f"--no-{flag.option[2:]}" for flag in flags_of(version).values() if flag.kind(version) == "bool"}


def _check_names(invocation: Invocation, version: Version) -> Parsed:
    """Settings given by name need no parsing, but names can be wrong for the version."""
    parsed = Parsed(dict(invocation.settings))
    known = flags_of(version)
    outside = {"served_model_name", "model", "tokenizer", "engine", "num_gpu_blocks", "num_cpu_blocks"}
    for name, written in invocation.settings.items():
        if name not in known and name not in outside and not invocation.source.startswith("cache_config_info"):
            parsed.problems.append(Problem("unknown_flag", name, f"{name} is not an engine argument", written.line))
    return parsed


def _accelerator(invocation: Invocation, given: str | None, parsed: Parsed) -> tuple[Accelerator | None, str | None]:
    if given == "cpu" or (given is None and parsed.value("device") == "cpu"):
        return None, "cpu"
    if given is not None:
        return find_accelerator(given), None
    try:
        named = invocation.facts.get("accelerator")
        return (find_accelerator(named), None) if isinstance(named, str) else (None, None)
    except ConfigError:
        return None, None


_MODEL_NAME = re.compile(r"[\w.-]{1,100}(/[\w.-]{1,100})?")


def _model(name: Any, *, explicit: bool) -> ModelArchitecture | None:
    """The model's facts; a deployment's own name is only looked up where it can be one of the catalogue."""
    if not explicit and (not isinstance(name, str) or not _MODEL_NAME.fullmatch(name) or name.endswith(".json")):
        return None
    if not isinstance(name, str) or (not explicit and name[0] in ".-"):
        return None
    try:
        return find_model(name)
    except ConfigError:
        if explicit:
            raise
        return None


def _engine(version: Version, invocation: Invocation) -> tuple[str, str]:
    word = invocation.environment.get("VLLM_USE_V1")
    asked = word.text if word is not None and not word.unresolved else None
    if version >= (0, 11, 0):
        return "V1", "the only engine since 0.11.0"
    if asked in ("0", "1"):
        return f"V{asked}", f"VLLM_USE_V1={asked}"
    return ("V1", "default since 0.8.0") if version >= (0, 8, 0) else ("V0", "default before 0.8.0")


def _unresolved(parsed: Parsed, invocation: Invocation) -> dict[str, tuple[str, ...]]:
    found = {name: written.unresolved for name, written in parsed.settings.items() if written.unresolved}
    for word in parsed.leftover:
        if word.unresolved:
            found[word.text] = word.unresolved
    for name, word in invocation.environment.items():
        if word.unresolved and name.startswith("VLLM_"):
            found[name] = word.unresolved
    return found


def _settle(result: Effective, device: str | None) -> None:
    """Fill in defaults, then let rows of the data change what they change, until nothing moves."""
    _fill(result, device)
    data = compat_data()
    for _ in range(4):
        moved = False
        for row in data.at(result.version):
            if row.sets and row_holds(row, result.facts, data):
                moved |= _apply(row, result, device)
        if not moved:
            return


def _apply(row: Row, result: Effective, device: str | None) -> bool:
    moved = False
    for name, value in row.sets.items():
        if name == "engine":
            forced = result.invocation.environment.get("VLLM_USE_V1")
            if result.engine != value and (forced is None or forced.text != "1"):
                result.engine, result.engine_reason = value, row.message
                result.facts.engine = value
                _fill(result, device)
                moved = True
            continue
        setting = result.settings.get(name)
        if setting is None or setting.value == value or name not in flags_of(result.version):
            continue
        result.settings[name] = Setting(
            name, value, setting.written, "forced", row.message, setting.line, setting.is_written
        )
        result.facts.values[name] = value
        moved = True
    if moved and row not in result.rows:
        result.rows.append(row)
    return moved


def _fill(result: Effective, device: str | None) -> None:
    settings: dict[str, Setting] = {}
    for name, written in result.parsed.settings.items():
        reason = "written"
        if written.unresolved:
            reason = f"depends on {', '.join(written.unresolved)}"
        elif written.defaults:
            reason = f"default written for {', '.join(written.defaults)}"
        settings[name] = Setting(name, written.value, written.value, written.origin, reason, written.line, True)
    for name, (value, reason) in chosen_defaults(result.parsed, result, device).items():
        settings.setdefault(name, Setting(name, value, None, "default", reason))
    length = settings.get("max_model_len")
    if length is not None and length.value == -1 and length.is_written:
        reason = "auto: the longest that fits the KV cache"
        settings["max_model_len"] = Setting("max_model_len", None, -1, "chosen at start", reason, length.line, True)
    result.settings = settings
    result.facts.values = {
        name: UNKNOWN if setting.value is None and setting.reason.startswith(("depends", "auto")) else setting.value
        for name, setting in settings.items()
        if not (setting.is_written and result.parsed.settings[name].unresolved)
    }
    for name, written in result.parsed.settings.items():
        if written.unresolved:
            result.facts.values[name] = UNKNOWN
    result.facts.derived = _derived(result, device)


def _derived(result: Effective, device: str | None) -> dict[str, Any]:
    values = {name: None if value is UNKNOWN else value for name, value in result.facts.values.items()}
    capability = result.accelerator.compute_capability if result.accelerator else None
    sampling = result.invocation.facts.get("sampling")
    sampling = sampling if isinstance(sampling, Mapping) else {}
    compilation = values.get("compilation_config")
    transfer = values.get("kv_transfer_config")
    environment = result.invocation.environment
    runner = environment["VLLM_USE_V2_MODEL_RUNNER"].text if "VLLM_USE_V2_MODEL_RUNNER" in environment else None
    default_runner = "V1" if result.version < (0, 22, 0) else ("V2" if result.version >= (0, 29, 0) else UNKNOWN)
    derived = {
        "engine": result.engine,
        "engine_minor": result.version[1],
        "platform": next((name for name in ("cpu", "tpu", "xpu", "rocm") if name in result.facts.platforms), "cuda"),
        "model_runner": {"1": "V2", "0": "V1"}.get(runner or "", default_runner),
        "cudagraph_mode": compilation.get("cudagraph_mode", UNKNOWN) if isinstance(compilation, Mapping) else UNKNOWN,
        "kv_connector": transfer.get("kv_connector") if isinstance(transfer, Mapping) else None,
        "is_pooling": _is_pooling(values),
        **model_facts(result.model),
        **speculation_facts(values, result.version),
        **environment_facts(environment),
        **{f"sampling_{name}": None for name in _SAMPLING},
        **{f"sampling_{name}": value for name, value in sampling.items()},
    }
    if capability is not None:
        derived["capability"] = capability[0] + capability[1] / 10
    if result.parsed.settings.get("speculative_config") and result.parsed.settings["speculative_config"].unresolved:
        derived |= {"speculative_config": UNKNOWN, "spec_method": UNKNOWN}
    return derived


def _is_pooling(values: Mapping[str, Any]) -> Any:
    """A pooling model is asked for by `--runner pooling`, or by `--task` in releases that have it."""
    if values.get("runner") == "pooling" or values.get("task") in ("embed", "embedding", "score", "classify", "reward"):
        return True
    return False if values.get("runner") == "generate" or values.get("task") == "generate" else UNKNOWN


_SAMPLING = ("logprobs", "prompt_logprobs", "best_of", "use_beam_search", "logits_processors", "structured_outputs",
             "min_p", "logit_bias", "min_tokens", "seed", "priority")  # fmt: skip
