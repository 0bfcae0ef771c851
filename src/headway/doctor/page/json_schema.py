"""What `headway doctor --json` prints, as a JSON Schema: the reference is made from it, tests hold the output to it."""

from __future__ import annotations

from typing import Any, get_args

from headway.doctor.diagnosis import BOTTLENECK_KINDS, Confidence
from headway.doctor.page.json_form import SCHEMA_NAME


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": ["number", "null"], "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


def _any(description: str) -> dict[str, Any]:
    return {"description": description}


def _object(description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    names = {name.rstrip("_"): value for name, value in properties.items()}
    return {
        "type": "object",
        "properties": names,
        "required": list(names),
        "additionalProperties": False,
        "description": description,
    }


def _objects(description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _object("", **properties), "description": description}


def _numbers_by_name(description: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"type": ["number", "null"]}, "description": description}


_KIND = {"type": "string", "enum": list(BOTTLENECK_KINDS), "description": "one of the kinds below"}

SCHEMA: dict[str, Any] = _object(
    "",
    schema={"type": "string", "enum": [SCHEMA_NAME], "description": f"`{SCHEMA_NAME}`"},
    subject=_text("what was examined, in a line"),
    bottlenecks=_objects(
        "the most limiting first; empty where nothing can be named",
        kind=_KIND,
        confidence={
            "type": "string",
            "enum": list(get_args(Confidence)),
            "description": "`strong`, `medium` or `weak`",
        },
        evidence=_texts("whole sentences with the numbers that prove it"),
        refuted_by=_texts("what would show that it is something else"),
        figures={
            "type": "object",
            "additionalProperties": {"type": ["number", "string", "boolean", "null"]},
            "description": "the numbers of the sentences, by name",
        },
        discriminate=_texts("how to tell two explanations apart that both fit"),
    ),
    fixes=_objects(
        "in the order in which to try them, the smallest change that helps first",
        setting=_text("vLLM's flag with underscores, or `replicas`, `client`, `request_rate`, `max_tokens`"),
        from_=_any("the effective value now"),
        to=_any("the value to try; null turns the feature off"),
        reason=_text("why"),
        addresses={"type": "array", "items": _KIND, "description": "the bottlenecks that it is for"},
        predicted=_objects(
            "by metric; empty where it was not simulated, and `note` says why",
            metric=_text("a key of `headway simulate --json`, such as `p99_ttft_ms`"),
            before=_number("simulated as it is, so that both sides share the model's error"),
            after=_number("simulated with the change"),
            low=_number("lower bound of `after`; null where the error is not known"),
            high=_number("upper bound of `after`"),
        ),
        side_effects=_texts("what gets worse"),
        helps={
            "type": ["boolean", "null"],
            "description": "whether the simulation finds it of use; null where it was not simulated",
        },
        note=_text("why there is no prediction, or what to know of it"),
    ),
    must_not=_objects(
        "changes that somebody may well think of",
        setting=_text("what not to touch, or not to go by"),
        reason=_text("why"),
    ),
    missing=_objects(
        "figures that the evidence lacks",
        figure=_text("which"),
        why=_text("what it would settle"),
        how=_text("how to get it"),
    ),
    compat=_texts("what this exact release makes of the flags, worst first"),
    read_next=_objects("what explains the finding", title=_text("title"), where=_text("address")),
    measure_next=_texts("what to watch while the first fix is tried"),
    configuration=_objects(
        "every scheduler setting of this release",
        name=_text("vLLM's flag with underscores; `num_gpu_blocks` is what the memory gives"),
        value=_any("the effective value"),
        default=_any("what it would be if it were not written"),
        origin={
            "type": "string",
            "enum": ["written", "default", "forced", "reported", "planned", "unknown"],
            "description": "where the value comes from: `forced` by the release, `reported` by the engine, …",
        },
        default_reason=_text("where the default comes from"),
        controls=_text("what of the scheduler it controls"),
        remark=_text("why a value other than the default matters here"),
    ),
    ruled_out={
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "bottleneck kinds and settings that the evidence excludes, with the reason",
    },
    model_check={
        **_object(
            "whether the fitted simulation reproduces what was seen; null where nothing was simulated",
            accepted={"type": "boolean", "description": "whether effects are predicted at all"},
            residual=_number("mean relative error"),
            observed=_numbers_by_name("what was seen, by metric"),
            simulated=_numbers_by_name("what the simulation gives"),
            note=_text("more about it"),
        ),
        "type": ["object", "null"],
    },
    figures=_numbers_by_name("what was read from the evidence, by name and unit"),
    unusable=_texts("what was left out, and why"),
)
"""All keys are always there."""


def field_rows(schema: dict[str, Any] = SCHEMA, prefix: str = "") -> list[tuple[str, str, str]]:
    """(key, type, what it is) of every field, in the order of the document."""
    rows = []
    for name, field in schema["properties"].items():
        key = f"{prefix}{name}"
        inner = field.get("items", field)
        is_list = field.get("type") == "array"
        rows.append((f"{key}[]" if is_list else key, _type_text(field), field["description"]))
        if "properties" in inner:
            rows += field_rows(inner, f"{key}[]." if is_list else f"{key}.")
    return rows


def _type_text(field: dict[str, Any]) -> str:
    kind = field.get("type", "any")
    if kind == "array":
        return f"list of {_plural(field['items'].get('type', 'any'))}"
    names = [kind] if isinstance(kind, str) else list(kind)
    return " or ".join(names)


def _plural(kind: str) -> str:
    return {"string": "strings", "object": "objects", "number": "numbers"}.get(kind, kind)
