"""The diagnosis as JSON: stable keys, no numbers that JSON cannot hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headway.doctor.diagnosis import Bottleneck, Diagnosis, Fix, SettingRead

SCHEMA_NAME = "headway.doctor/1"


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The document of `headway doctor --json`; `headway.doctor.page.json_schema` describes it."""
    check = diagnosis.model_check
    document = {
        "schema": SCHEMA_NAME,
        "subject": diagnosis.subject,
        "bottlenecks": [_bottleneck(item) for item in diagnosis.bottlenecks],
        "fixes": [_fix(fix) for fix in diagnosis.fixes],
        "must_not": [{"setting": item.setting, "reason": item.reason} for item in diagnosis.must_not],
        "missing": [{"figure": item.figure, "why": item.why, "how": item.how} for item in diagnosis.missing],
        "compat": list(diagnosis.compat),
        "read_next": [{"title": title, "where": where} for title, where in diagnosis.read_next],
        "measure_next": list(diagnosis.measure_next),
        "configuration": [_setting(row) for row in diagnosis.configuration],
        "ruled_out": dict(diagnosis.ruled_out),
        "model_check": None
        if check is None
        else {
            "accepted": check.accepted,
            "residual": check.residual,
            "observed": dict(check.observed),
            "simulated": dict(check.simulated),
            "note": check.note,
        },
        "figures": dict(diagnosis.figures),
        "unusable": list(diagnosis.unusable),
    }
    result: dict[str, Any] = _plain(document)
    return result


def _bottleneck(item: Bottleneck) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "confidence": item.confidence,
        "evidence": list(item.evidence),
        "refuted_by": list(item.refuted_by),
        "figures": dict(item.figures),
        "discriminate": list(item.discriminate),
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "setting": fix.setting,
        "from": fix.from_value,
        "to": fix.to_value,
        "reason": fix.reason,
        "addresses": list(fix.addresses),
        "predicted": [
            {
                "metric": item.metric,
                "before": item.before,
                "after": item.after,
                "low": item.low,
                "high": item.high,
            }
            for item in fix.predicted
        ],
        "side_effects": list(fix.side_effects),
        "helps": fix.helps,
        "note": fix.note,
    }


def _setting(row: SettingRead) -> dict[str, Any]:
    return {
        "name": row.name,
        "value": row.value,
        "default": row.default,
        "origin": row.origin,
        "default_reason": row.default_reason,
        "controls": row.controls,
        "remark": row.remark,
    }


def _plain(value: Any) -> Any:
    """JSON has neither NaN nor infinity, nor keys or values that are not its own."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    return str(value)
