"""Where the results of `headway simulate` go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.config import option
from headway.errors import ConfigError
from headway.report.files import check_writable


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Files that a simulation writes, and what it judges by.

    Raises:
        ConfigError: a file that could not be written.
    """

    compare_policies: bool = option(
        False, "Simulate naive, static, continuous and chunked side by side, and --policy if it is another."
    )
    slo: str = option(
        "", "Objectives for goodput, such as ttft_ms=500,tpot_ms=50 (also itl_ms, and e2el_ms for whole requests)."
    )
    capacity: bool = option(
        False,
        "Also find the throughput with requests that never lack, the highest load within --slo, and how many replicas "
        "the load at hand needs.",
    )
    slo_share: float = option(0.99, "Share of the requests that must meet every objective, for --capacity.")
    json_path: str | None = option(
        None, "Print one JSON object a policy, or write them to this file.", flag="json", bare="-"
    )
    html_path: str | None = option(None, "Write a report with plots to this HTML file.", flag="html")
    perfetto_path: str | None = option(
        None, "Write a trace for ui.perfetto.dev to this file (.json or .json.gz).", flag="perfetto"
    )
    requests_path: str | None = option(
        None,
        "Write a row for each request and why it took as long to this CSV or JSON Lines file.",
        flag="requests-out",
    )
    metrics_path: str | None = option(
        None,
        "Write what a Prometheus server would scrape of the deployment's /metrics to this file.",
        flag="metrics-out",
    )
    log_path: str | None = option(
        None, "Write what a vLLM server of the deployment would log to this file.", flag="log-out"
    )
    scrape_interval_s: float = option(15.0, "Virtual time between two scrapes.", unit="seconds")
    fast_forward: bool = option(True, "Take like steps together: the same result, sooner.")

    def __post_init__(self) -> None:
        files = (
            ("--json", self.json_path),
            ("--html", self.html_path),
            ("--perfetto", self.perfetto_path),
            ("--requests-out", self.requests_path),
            ("--metrics-out", self.metrics_path),
            ("--log-out", self.log_path),
        )
        for flag, path in files:
            check_writable(path, flag)
        if self.requests_path is not None and Path(self.requests_path).suffix not in (".csv", ".jsonl"):
            raise ConfigError(f"--requests-out writes .csv or .jsonl, not {self.requests_path!r}.")
        one_run = [flag for flag, path in files[1:] if path is not None] + ["--capacity"] * self.capacity
        if self.compare_policies and one_run:
            raise ConfigError(f"{one_run[0]} shows one policy.", hint="Leave --compare-policies out.")
        if not 0.0 < self.slo_share <= 1.0:
            raise ConfigError(f"--slo-share must be above 0 and at most 1, not {self.slo_share:g}.")
        if not self.scrape_interval_s > 0:
            raise ConfigError(f"--scrape-interval-s must be positive, not {self.scrape_interval_s:g}.")

    @property
    def emits_telemetry(self) -> bool:
        """Whether what a monitored server would show is asked for."""
        return self.metrics_path is not None or self.log_path is not None

    @property
    def follows_requests(self) -> bool:
        """Whether single requests and steps are asked for, not only totals."""
        return self.html_path is not None or self.perfetto_path is not None or self.requests_path is not None
