"""What a careful reader would remark on in an effective configuration. Each rule is one function."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping

from headway.catalog.flags import all_flags, flags_of
from headway.deployment.arguments import Problem
from headway.deployment.effective import Effective
from headway.deployment.invocation import Level, Lint
from headway.deployment.values import parse_size
from headway.errors import ConfigError

Rule = Callable[[Effective], Iterator[Lint]]
_RANK = {"error": 0, "warning": 1, "note": 2}


def lints_of(effective: Effective) -> list[Lint]:
    """All lints of a configuration, the reader's own first within each level."""
    found = [*effective.lints, *(lint for rule in _RULES for lint in rule(effective))]
    return sorted(dict.fromkeys(found), key=lambda lint: _RANK[lint.level])


def problem_lint(problem: Problem, effective: Effective) -> Lint:
    """A parser's problem as a lint, with what to do about an unknown flag."""
    message = problem.message
    names: tuple[str, ...] = ()
    if problem.kind in ("unknown_flag", "ambiguous"):
        name = setting_name(problem.option)
        names = (name,)
        message = f"{problem.option} is not a flag of vLLM {effective.version_text}" + unknown_flag_hint(
            name, effective
        )
        if problem.kind == "ambiguous":
            message += f" ({problem.message})"
    rule = {"unknown_flag": "unknown-flag", "ambiguous": "unknown-flag", "bad_value": "bad-value"}
    if problem.kind == "bad_value" and (glued := re.search(r"'([^']*?)(--[a-z][\w-]*)'", message)):
        message += f". A blank is missing between {glued.group(1)} and {glued.group(2)}"
        return Lint("missing-space", "error", message + ".", problem.line, (setting_name(glued.group(2)),))
    return Lint(rule.get(problem.kind, problem.kind.replace("_", "-")), "error", message + ".", problem.line, names)


def setting_name(option: str) -> str:
    """`--max-num-seqs` or `--no-x` as a setting's name."""
    name = option.lstrip("-").replace("-", "_")
    return name.removeprefix("no_") if name not in all_flags() else name


def unknown_flag_hint(name: str, effective: Effective) -> str:
    """What became of a flag that the version does not know."""
    flag = all_flags().get(name)
    if flag is not None:
        removed = flag.removed_in(effective.version)
        if removed is not None:
            text = f": it was removed in {'.'.join(map(str, removed))}"
            text += f"; use {replacement(flag.replaced_by)}" if flag.replaced_by else ""
            return text + (f" ({flag.note})" if flag.note else "")
        return f": it came in {'.'.join(map(str, flag.spans[0][0]))}"
    options = {
        option: known for known, option in ((flag.name, flag.option) for flag in flags_of(effective.version).values())
    }
    near = difflib.get_close_matches("--" + name.replace("_", "-"), options, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}" if near else ""


def replacement(name: str) -> str:
    """A replacement as it is typed."""
    if name.startswith("no_"):
        return f"--{name.replace('_', '-')}"
    head, dot, rest = name.partition(".")
    return f"--{head.replace('_', '-')}{dot}{rest}"


def _lint(rule: str, level: Level, message: str, effective: Effective, *settings: str) -> Lint:
    line = next((effective.settings[name].line for name in settings if name in effective.settings), 0)
    return Lint(rule, level, message, line, settings)


def _problems(effective: Effective) -> Iterator[Lint]:
    for problem in effective.problems:
        yield problem_lint(problem, effective)


def _repeated(effective: Effective) -> Iterator[Lint]:
    for option in effective.parsed.repeated:
        name = setting_name(option)
        yield _lint(
            "repeated-flag", "warning", f"{option} is given more than once; the last one wins.", effective, name
        )


def _abbreviated(effective: Effective) -> Iterator[Lint]:
    for short, full in effective.parsed.abbreviated.items():
        own = all_flags().get(setting_name(short))
        if own is not None and own.option == short:
            message = (
                f"{short} was removed; this version reads it as an abbreviation of {full}, which is something else."
            )
            yield _lint("abbreviated-flag", "error", message, effective, setting_name(full))
        else:
            message = f"{short} is an abbreviation of {full}; a new flag with the same start would make it ambiguous."
            yield _lint("abbreviated-flag", "warning", message, effective, setting_name(full))


def _defaults(effective: Effective) -> Iterator[Lint]:
    names = dict.fromkeys(name for written in effective.parsed.settings.values() for name in written.defaults)
    if names:
        message = f"Values come from defaults written in the file; the environment may override: {', '.join(names)}."
        yield Lint("values-from-defaults", "note", message)


def _unresolved(effective: Effective) -> Iterator[Lint]:
    for name, parts in effective.unresolved.items():
        is_template = any(part.startswith("{{") for part in parts)
        kind = "is a template" if is_template else "cannot be told from the file"
        yield _lint(
            "unresolved", "warning", f"{name}: {', '.join(parts)} {kind}; it is kept as written.", effective, name
        )


def _gpu_share(effective: Effective) -> Iterator[Lint]:
    share = effective.value("gpu_memory_utilization")
    if isinstance(share, int | float) and share > 0.97:
        message = (
            f"gpu_memory_utilization {share:g} leaves no room for CUDA graphs, the context and other processes: expect "
            "an out-of-memory error at start or under load. 0.90 to 0.95 is usual."
        )
        yield _lint("gpu-memory-utilization-full", "warning", message, effective, "gpu_memory_utilization")


def _gpu_count(effective: Effective) -> Iterator[Lint]:
    reserved = effective.invocation.facts.get("num_gpus")
    sizes = [effective.value(name) for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")]
    if not isinstance(reserved, int) or any(size is not None and not isinstance(size, int) for size in sizes):
        return
    tp, pp, dp = (size or 1 for size in sizes)
    needed = tp * pp * dp
    if reserved > needed:
        idle = reserved - needed
        message = (
            f"{reserved} GPUs are reserved but tensor × pipeline × data parallel size is {needed}: {idle} stay idle."
        )
        message += _too_small_cards(effective)
        yield _lint("gpus-idle", "warning", message, effective, "tensor_parallel_size")
    elif reserved < needed:
        message = f"{needed} GPUs are needed (tensor × pipeline × data parallel size) but {reserved} are reserved."
        yield _lint("gpus-missing", "error", message, effective, "tensor_parallel_size")


_CARD_SIZES_GB = (8, 12, 16, 24, 32, 40, 48, 80)
_LEAST_BESIDE_WEIGHTS_GB = 1.0
"""A CUDA context and the activations of a short step."""


def _too_small_cards(effective: Effective) -> str:
    """What the weights of one rank rule out, where the model is in the catalogue; else nothing."""
    model, tp = effective.model, effective.value("tensor_parallel_size")
    share = effective.value("gpu_memory_utilization")
    if model is None or not isinstance(tp, int) or not isinstance(share, int | float):
        return ""
    with contextlib.suppress(ConfigError):
        weights_gb = model.weight_bytes(tp=tp) / 1e9
        too_small = [size for size in _CARD_SIZES_GB if size * share < weights_gb + _LEAST_BESIDE_WEIGHTS_GB]
        if too_small:
            return f" Each GPU in use holds {weights_gb:.1f} GB of weights: {model.id} does not fit {too_small[-1]} GB."
    return ""


def _slow_stack(effective: Effective) -> Iterator[Lint]:
    offload = effective.value("cpu_offload_gb")
    if not isinstance(offload, int | float) or offload <= 0:
        return
    parts = ["CPU offload"]
    if effective.facts.get("speculative_config") not in (None,):
        parts.insert(0, "speculative decoding")
    if effective.value("enforce_eager") is True:
        parts.append("eager execution")
    message = (
        f"{' + '.join(parts)}: weights cross PCIe in every step"
        + (", and drafts add steps that pay for it again" if len(parts) > 1 and parts[0].startswith("spec") else "")
        + ("; without CUDA graphs launch time is added" if "eager execution" in parts else "")
        + ". Expect high latency."
    )
    yield _lint("slow-combination", "warning", message, effective, "cpu_offload_gb")


def _spec_pipeline(effective: Effective) -> Iterator[Lint]:
    stages = effective.value("pipeline_parallel_size")
    if effective.facts.get("speculative_config") is not None and isinstance(stages, int) and stages > 1:
        message = (
            "Speculative decoding with pipeline parallelism depends on the exact version and method; see "
            f"`headway compat` for {effective.version_text}."
        )
        yield _lint("check-version", "warning", message, effective, "speculative_config", "pipeline_parallel_size")


def _sizes(effective: Effective) -> Iterator[Lint]:
    for name, written in effective.parsed.settings.items():
        if not isinstance(written.value, int) or not re.fullmatch(r"\d+(\.\d+)?[kKmMgGtT]", written.text.strip()):
            continue
        text = written.text.strip()
        other = text[:-1] + text[-1].swapcase()
        message = f"{text} is {written.value}"
        with contextlib.suppress(ValueError):
            message += f"; {other} would be {parse_size(other)}"
        message += " (lower case counts in thousands, upper case in 1024s)."
        if name == "max_num_batched_tokens":
            message += " Releases before 0.9.1 refuse a suffix here."
        elif name == "max_model_len":
            message += " Releases before 0.8.5 refuse a suffix here."
        yield _lint("size-suffix", "note", message, effective, name)


def _context_parallel(effective: Effective) -> Iterator[Lint]:
    dcp, tp = effective.value("decode_context_parallel_size"), effective.value("tensor_parallel_size")
    if not isinstance(dcp, int) or not isinstance(tp, int) or dcp <= 1:
        return
    if tp % dcp:
        message = f"decode_context_parallel_size {dcp} does not divide tensor_parallel_size {tp}."
        yield _lint("context-parallel", "error", message, effective, "decode_context_parallel_size")
    else:
        message = (
            f"decode_context_parallel_size {dcp} with tensor_parallel_size {tp}: the KV cache of a sequence is spread "
            f"over {dcp} of the same {tp} GPUs; no further GPUs are used. It needs {dcp} copies of each KV head (MLA, "
            "or fewer KV heads than GPUs)."
        )
        yield _lint(
            "context-parallel", "note", message, effective, "decode_context_parallel_size", "tensor_parallel_size"
        )


def _model_length(effective: Effective) -> Iterator[Lint]:
    setting = effective.settings.get("max_model_len")
    if setting is None or not setting.is_written or not isinstance(setting.value, int):
        return
    length = setting.value
    if (near := _transposed(length)) is not None:
        message = f"max_model_len {length} looks like a typo of {near}."
        yield _lint("max-model-len-typo", "warning", message, effective, "max_model_len")
    if length >= 1_000_000:
        message = f"max_model_len {length} is very long: check that the KV cache holds one such request (headway plan)."
        yield _lint("max-model-len-long", "warning", message, effective, "max_model_len")
    limit = effective.model.max_model_len if effective.model is not None else None
    if limit is not None and length > limit:
        message = f"max_model_len {length} is longer than the model's own limit of {limit}."
        yield _lint("max-model-len-beyond-model", "error", message, effective, "max_model_len")
    if effective.invocation.form == "settings":
        message = f"max_model_len {length} counts tokens of prompt and output together; characters are not tokens."
        yield _lint("tokens-not-characters", "note", message, effective, "max_model_len")


def _transposed(number: int) -> int | None:
    """A power of two (512 to 1 Mi) that differs only by two neighbouring digits being swapped."""
    digits = str(number)
    if number & (number - 1) == 0 or not 3 <= len(digits) <= 7:
        return None
    for index in range(len(digits) - 1):
        swapped = digits[:index] + digits[index + 1] + digits[index] + digits[index + 2 :]
        value = int(swapped)
        if value != number and 512 <= value <= 2**20 and value & (value - 1) == 0:
            return value
    return None


def _secrets(effective: Effective) -> Iterator[Lint]:
    """Plain secrets in a deployment file."""
    setting = effective.settings.get("api_key")
    if setting is not None and setting.is_written and not effective.parsed.settings["api_key"].unresolved:
        yield _lint("secret-in-file", "warning", "The API key stands in the file in plain text.", effective, "api_key")


def _parsers(effective: Effective) -> Iterator[Lint]:
    if effective.value("enable_auto_tool_choice") is True and not effective.value("tool_call_parser"):
        message = "--enable-auto-tool-choice needs --tool-call-parser; vLLM stops at start."
        yield _lint("missing-companion", "error", message, effective, "enable_auto_tool_choice")


def _wandering_values(effective: Effective) -> Iterator[Lint]:
    """Values out of range."""
    checks: Mapping[str, tuple[float, float]] = {
        "gpu_memory_utilization": (0.0, 1.0),
        "tensor_parallel_size": (1, 4096),
        "pipeline_parallel_size": (1, 4096),
        "max_num_seqs": (1, 10**6),
        "max_num_batched_tokens": (1, 10**9),
    }
    for name, (low, high) in checks.items():
        setting = effective.settings.get(name)
        if setting is None or not setting.is_written or isinstance(setting.value, bool):
            continue
        if isinstance(setting.value, int | float) and not (low <= setting.value <= high and setting.value > 0):
            message = f"{name} {setting.value:g} is out of range."
            yield _lint("value-out-of-range", "error", message, effective, name)


_RULES: tuple[Rule, ...] = (
    _problems,
    _repeated,
    _abbreviated,
    _unresolved,
    _gpu_share,
    _gpu_count,
    _slow_stack,
    _spec_pipeline,
    _context_parallel,
    _model_length,
    _secrets,
    _parsers,
    _wandering_values,
    _sizes,
    _defaults,
)
