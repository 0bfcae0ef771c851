"""Predicted against measured: one error a metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.accuracy.measured_rows import MeasuredRow

METRICS: Mapping[str, tuple[str, ...]] = {
    "tpot": ("mean_tpot_ms", "median_tpot_ms"),
    "ttft": ("mean_ttft_ms", "median_ttft_ms"),
    "output_throughput": ("output_throughput",),
}
"""Metric → the summary keys that it is compared by: the first that was measured."""


@dataclass(frozen=True, slots=True)
class RowError:
    """One metric of one row. `error` is predicted / measured - 1."""

    row_id: str
    source: str
    model: str
    gpu: str
    is_held_out: bool
    metric: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative, signed."""
        return self.predicted / self.measured - 1.0


def row_errors(row: MeasuredRow, predicted: Mapping[str, float | int | None]) -> list[RowError]:
    """The errors of a row's metrics that were measured and predicted."""
    found = []
    for metric, keys in METRICS.items():
        key = next((key for key in keys if key in row.measured), None)
        value = predicted.get(key) if key is not None else None
        if key is not None and value is not None:
            found.append(
                RowError(
                    row.row_id,
                    row.source,
                    row.model_name,
                    row.gpu,
                    row.is_held_out,
                    metric,
                    row.measured[key],
                    float(value),
                )
            )
    return found
