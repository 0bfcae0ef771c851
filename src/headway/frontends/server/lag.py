"""How far a simulated server runs behind its own deadlines, as metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.frontends.pacing import PacedClock


class LagCollector(Collector):
    """How far the simulation runs behind the deadlines of its steps."""

    def __init__(self, clock: PacedClock, model_name: str) -> None:
        self._clock = clock
        self._labels = {"model_name": model_name, "engine": "0"}

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        clock, names, values = self._clock, tuple(self._labels), tuple(self._labels.values())
        for name, text, value in (
            ("headway:simulation_lag_seconds", "Lateness of the last step's end.", clock.lag_s),
            ("headway:simulation_lag_max_seconds", "Largest lateness of a step's end.", clock.max_lag_s),
        ):
            gauge = GaugeMetricFamily(name, text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        counter = CounterMetricFamily(
            "headway:simulation_late_steps", "Steps that ended late by 5 % of their time or more.", labels=names
        )
        counter.add_metric(values, clock.num_late)
        yield counter
