"""The files that `headway simulate` writes beside its table, each fed while the simulation runs."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from headway.core.engine import Engine, Listener
from headway.report.explain import RequestStory, StoryWriter
from headway.report.html import Report, Series, distribution, summary_rows, write_report
from headway.report.perfetto import PerfettoWriter
from headway.simulation.options import ResolvedDeployment
from headway.simulation.output_options import OutputOptions
from headway.simulation.run import Observer
from headway.simulation.server_log import startup_lines
from headway.simulation.stories import StoryTeller
from headway.simulation.telemetry import Telemetry
from headway.simulation.timeline import Timeline, TraceRecorder

if TYPE_CHECKING:
    from headway.cli.simulate_run import Simulated

_SLOWEST = 20

Writer = Callable[["Simulated"], str]
"""Called at the end; returns a line for the user."""


class Files(Observer):
    """An observer that passes what it sees to every file asked for."""

    def __init__(self, output: OutputOptions, resolved: ResolvedDeployment, title: str, subtitle: str) -> None:
        self._output = output
        self._title = title
        self._subtitle = subtitle
        self._stories = StoryWriter(output.requests_path) if output.requests_path is not None else None
        self._trace = PerfettoWriter(output.perfetto_path) if output.perfetto_path is not None else None
        self._timeline = Timeline()
        self._teller = StoryTeller(resolved.deployment.oracle, self._tell)
        self._slowest: list[tuple[float, str, RequestStory]] = []
        self._ttfts = array("d")
        self._tpots = array("d")

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `Observer`."""
        listeners: list[Listener] = [self._teller.attach(rank, engine)]
        if self._output.html_path is not None:
            listeners.append(self._timeline.attach(rank, engine))
        if self._trace is not None:
            listeners.append(TraceRecorder(self._trace).attach(rank, engine))
        if len(listeners) == 1:
            return listeners[0]

        def listen(event: object) -> None:
            for listener in listeners:
                listener(event)  # type: ignore[arg-type]

        return listen

    def _tell(self, story: RequestStory) -> None:
        if self._stories is not None:
            self._stories.write(story)
        if self._trace is not None:
            self._trace.request(story)
        if self._output.html_path is not None:
            self._ttfts.append(story.ttft_s)
            if story.num_output_tokens > 1:
                self._tpots.append((story.e2el_s - story.ttft_s) / (story.num_output_tokens - 1))
            entry = (story.e2el_s, story.request_id, story)
            (heapq.heappush if len(self._slowest) < _SLOWEST else heapq.heappushpop)(self._slowest, entry)

    def write(self, run: Simulated, settings: list[tuple[str, str, str]]) -> list[str]:
        """Finish every file; returns a line for each."""
        lines = []
        if self._stories is not None:
            self._stories.close()
            lines.append(f"Requests written to {self._output.requests_path}.")
        if self._trace is not None:
            self._trace.close()
            dropped = self._trace.num_dropped
            missing = f" (the last {dropped:,} events are left out)" if dropped else ""
            lines.append(f"Trace written to {self._output.perfetto_path}{missing}: open it in ui.perfetto.dev.")
        if self._output.html_path is not None:
            path = write_report(self._output.html_path, self._report(run, settings))
            lines.append(f"Report written to {path}.")
        return lines

    def _report(self, run: Simulated, settings: list[tuple[str, str, str]]) -> Report:
        samples = self._timeline.ranks[0]
        label = "seconds" if len(self._timeline.ranks) == 1 else "seconds, first replica"
        rates = [
            (after.at, (after.num_tokens - before.num_tokens) / max(after.at - before.at, 1e-9))
            for before, after in zip(samples[::5], samples[5::5], strict=False)
        ]
        plots = [
            Series("Requests running", label, [(sample.at, sample.num_running) for sample in samples]),
            Series("Requests waiting", label, [(sample.at, sample.num_waiting) for sample in samples]),
            Series("KV cache used", label, [(sample.at, sample.kv_usage) for sample in samples], "%"),
            Series("Output tokens a second", label, rates),
            distribution(self._ttfts, "Time to first token: share of requests", "milliseconds, logarithmic"),
            distribution(self._tpots, "Time per output token: share of requests", "milliseconds, logarithmic"),
        ]
        return Report(
            self._title,
            self._subtitle,
            settings,
            ("", "mean", "p50", "p90", "p95", "p99", "±"),
            summary_rows(run.result.summary, run.bars),
            plots,
            [story for _, _, story in sorted(self._slowest, reverse=True)],
        )


class TelemetryFiles:
    """The deployment's scrapes and its log, written while the simulation runs; a context manager."""

    def __init__(self, output: OutputOptions, resolved: ResolvedDeployment) -> None:
        self._output = output
        self._files = ExitStack()
        scrapes, log = self._open(output.metrics_path), self._open(output.log_path)
        if log is not None:
            log.writelines(f"{line}\n" for line in startup_lines(resolved))
        self.telemetry = Telemetry(
            model_name=resolved.options.model or "simulated",
            kv_cache_dtype=resolved.options.kv_cache_dtype,
            on_scrape=None if scrapes is None else lambda _, text: scrapes.write(text),
            on_log=None if log is None else lambda _, line: log.write(f"{line}\n"),
            scrape_interval_s=output.scrape_interval_s,
        )

    def __enter__(self) -> TelemetryFiles:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._files.close()

    def finish(self) -> list[str]:
        """Write what is left; returns a line for each file."""
        self.telemetry.close()
        told = (("Scrapes", self._output.metrics_path), ("Log", self._output.log_path))
        return [f"{what} written to {path}." for what, path in told if path is not None]

    def _open(self, path: str | None) -> TextIO | None:
        return None if path is None else self._files.enter_context(Path(path).open("w", encoding="utf-8"))
