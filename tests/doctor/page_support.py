"""A diagnosis made by hand, and a check of documents against the part of JSON Schema that ours uses."""

from __future__ import annotations

from typing import Any

from headway.doctor.diagnosis import (
    Bottleneck,
    Diagnosis,
    Fix,
    Missing,
    ModelCheck,
    MustNot,
    Predicted,
    SettingRead,
)

HOSTILE = "a|b <script>alert(1)</script> [bold]x[/bold] *y* `z`\nnew line"


def full_diagnosis(text: str = "256 requests ran in all samples, 251 waited.") -> Diagnosis:
    """Every field is filled; `text` stands wherever the evidence speaks."""
    return Diagnosis(
        subject=f"a model on L40S-48GB; vLLM 0.32.0 (V1). Seen: {text}",
        configuration=(
            SettingRead("max_num_seqs", 256, 256, "seats", "All seats were taken.", "written", "default"),
            SettingRead("max_num_batched_tokens", 8192, 2048, "token budget", text, "written"),
            SettingRead("watermark", 0.0, 0.0, "share left free"),
            SettingRead("async_scheduling", False, True, "whether the next step is planned", "", "forced"),
        ),
        bottlenecks=(
            Bottleneck(
                "waiting_queue_stall",
                "strong",
                (text,),
                ("Seats that stay free while requests wait.",),
                {"num_waiting": 251.0},
                (text,),
            ),
        ),
        ruled_out={"kv_starvation": text},
        fixes=(
            Fix(
                "max_num_seqs",
                256,
                384,
                text,
                ("waiting_queue_stall",),
                (
                    Predicted("p99_ttft_ms", 8200.0, 1100.0, 935.0, 1265.0),
                    Predicted("p99_itl_ms", 29.0, 33.0, 30.0, 45.0),
                    Predicted("output_throughput", 7573.0, 8100.0, None, None),
                ),
                ("ITL grows by 4 ms.",),
            ),
            Fix(
                "speculative_config", {"method": "ngram"}, None, "It costs more than it brings.", note="Not simulated."
            ),
        ),
        must_not=(MustNot("gpu_memory_utilization", text),),
        missing=(Missing("num_requests_running", "It would settle it.", "The gauge."),),
        compat=(text,),
        model_check=ModelCheck({"p99_ttft_ms": 8200.0}, {"p99_ttft_ms": 8000.0}, 0.024, True),
        read_next=(("A paper", "https://example.org/paper"),),
        measure_next=("WAITING depth.",),
        figures={"p99_ttft_ms": 8200.0, "nothing": float("nan")},
        unusable=(text,),
    )


def schema_errors(value: Any, schema: dict[str, Any], path: str = "$") -> list[str]:
    """What is wrong with a document: type, enum, required, properties, additionalProperties and items are checked."""
    kinds = schema.get("type")
    if kinds is not None and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [f"{path}: {value!r} is no {kinds}"]
    errors = []
    if "enum" in schema and value not in schema["enum"]:
        errors.append(f"{path}: {value!r} is none of {schema['enum']}")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        errors += [f"{path}.{name} is missing" for name in schema.get("required", ()) if name not in value]
        more = schema.get("additionalProperties", True)
        for name, part in value.items():
            if name in known:
                errors += schema_errors(part, known[name], f"{path}.{name}")
            elif more is False:
                errors.append(f"{path}.{name} is not known")
            elif isinstance(more, dict):
                errors += schema_errors(part, more, f"{path}.{name}")
    if isinstance(value, list) and "items" in schema:
        for index, part in enumerate(value):
            errors += schema_errors(part, schema["items"], f"{path}[{index}]")
    return errors


def _is(value: Any, kind: str) -> bool:
    if kind == "number":
        return isinstance(value, int | float) and not isinstance(value, bool)
    types: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])
