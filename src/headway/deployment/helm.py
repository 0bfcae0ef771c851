"""Reads Helm values: vLLM production-stack's `servingEngineSpec.modelSpec`, and flags given as keys of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headway.catalog.flags import all_flags
from headway.deployment.container_args import environment_of, kubernetes_word, line_of, text_of
from headway.deployment.invocation import Invocation
from headway.deployment.words import Word

_CHART_FLAGS = {
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "maxModelLen": "--max-model-len",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxNumBatchedTokens": "--max-num-batched-tokens",
    "maxLoras": "--max-loras",
    "kvCacheDtype": "--kv-cache-dtype",
    "quantization": "--quantization",
}
"""Keys of `vllmConfig` that the production-stack chart turns into flags."""
_CHART_SWITCHES = {
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "enablePrefixCaching": "--enable-prefix-caching",
    "enableLoRA": "--enable-lora",
    "trustRemoteCode": "--trust-remote-code",
}


def read_values(document: Mapping[Any, Any]) -> list[Invocation]:
    """The vLLM starts that a values file describes."""
    return [_read(spec) for spec in _model_specs(document)]


def is_production_stack(document: Any) -> bool:
    """The document has model specs of the production-stack chart."""
    return isinstance(document, Mapping) and next(_model_specs(document), None) is not None


def _model_specs(node: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(node, Mapping):
        specs = node.get("modelSpec")
        if isinstance(specs, list):
            yield from (spec for spec in specs if isinstance(spec, Mapping))
        for value in node.values():
            if value is not specs:
                yield from _model_specs(value)


def _read(spec: Mapping[Any, Any]) -> Invocation:
    found = Invocation(
        "serve", "production-stack values", name=text_of(spec.get("name")), line=line_of(spec.get("name"))
    )
    found.environment = environment_of(spec.get("env"))
    found.image = f"{text_of(spec.get('repository'))}:{text_of(spec.get('tag') or 'latest')}"
    config = spec.get("vllmConfig")
    config = config if isinstance(config, Mapping) else {}
    if "modelURL" in spec:
        found.words.append(Word(text_of(spec["modelURL"]), line=line_of(spec["modelURL"])))
    for key, value in config.items():
        _config_flag(str(key), value, found)
    if str(spec.get("requestGPU", "")).isdigit() and len(str(spec["requestGPU"])) < 6:
        found.facts["num_gpus"] = int(str(spec["requestGPU"]))
    gpu_type = spec.get("requestGPUType") or spec.get("gpuType")
    if isinstance(gpu_type, str) and "/" not in gpu_type:
        found.facts["accelerator"] = str(gpu_type)
    _engine(config, found)
    _extra_args(config, found)
    return found


def _config_flag(key: str, value: Any, found: Invocation) -> None:
    line = line_of(value)
    if key in _CHART_FLAGS and value not in (None, ""):
        found.words += [Word(_CHART_FLAGS[key], line=line), kubernetes_word(value, found.environment)]
    elif key in _CHART_SWITCHES:
        negated = _CHART_SWITCHES[key].replace("--", "--no-", 1)
        found.words.append(
            Word(_CHART_SWITCHES[key] if text_of(value).lower() in ("true", "1") else negated, line=line)
        )


def _engine(config: Mapping[Any, Any], found: Invocation) -> None:
    """`v0` and `v1` of the chart set VLLM_USE_V1."""
    for key, on, off in (("v0", "0", "1"), ("v1", "1", "0")):
        if key in config:
            found.environment["VLLM_USE_V1"] = Word(on if text_of(config[key]) in ("1", "true") else off)


def _extra_args(config: Mapping[Any, Any], found: Invocation) -> None:
    """The chart always writes its own parallelism flag, so one given in extraArgs is reported and not taken."""
    extra = config.get("extraArgs")
    args = [kubernetes_word(item, found.environment) for item in extra] if isinstance(extra, list) else []
    skip_value = False
    for word in args:
        name, value = word.partition("=")
        if skip_value and not word.text.startswith("-"):
            skip_value = False
            continue
        skip_value = False
        if name.text.replace("_", "-") in ("--tensor-parallel-size", "-tp"):
            message = (
                "tensor_parallel_size stands only in extraArgs, which the chart does not use for it"
                if "tensorParallelSize" not in config
                else "tensor_parallel_size stands in vllmConfig and in extraArgs"
            )
            tail = "; write vllmConfig.tensorParallelSize." if "tensorParallelSize" not in config else "."
            found.lint("parallelism-in-extra-args", "error", message + tail, word.line, "tensor_parallel_size")
            if "tensorParallelSize" not in config:
                found.words += [Word("--tensor-parallel-size", line=word.line), Word("1", line=word.line)]
            skip_value = value is None
            continue
        found.words.append(word)


def looks_like_engine_args(node: Any) -> bool:
    """A mapping whose keys are vLLM settings."""
    if not isinstance(node, Mapping):
        return False
    known = all_flags()
    names = [str(key).replace("-", "_").removeprefix("no_") for key in node]
    hits = sum(name in known for name in names)
    return hits >= 1 and hits * 2 >= len(names)
