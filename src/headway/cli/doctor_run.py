"""One run of `headway doctor`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from headway.cli.config_run import FINDINGS, FINE
from headway.cli.console import make_console
from headway.doctor.diagnose import diagnose
from headway.doctor.diagnosis import Diagnosis
from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.gather import gather
from headway.doctor.objective import parse_objective
from headway.doctor.page.html import html_page, plots_of
from headway.doctor.page.json_form import diagnosis_json
from headway.doctor.page.markdown import markdown_page
from headway.doctor.page.page import make_page
from headway.doctor.page.terminal import terminal_page
from headway.errors import InputError
from headway.report.files import check_writable, write_file


class DoctorRun:
    """Reads the evidence, then writes the page in one format, to a file or to standard output.

    Raises:
        InputError: evidence that is named cannot be read. ConfigError: an objective, or the file to write.
    """

    def __init__(self, form: str, output: Path | None) -> None:
        self._form = form
        self._output = output
        check_writable(output, "--output")

    def gather(
        self,
        *,
        deployment: str | None,
        metrics: Sequence[str],
        interval_s: float | None,
        logs: Sequence[str],
        benches: Sequence[str],
        observed: Sequence[str],
        trace: Path | None,
        engine_version: str | None,
        gpu: str | None,
        model: str | None,
        slo: str | None,
        goal: str,
    ) -> Evidence:
        """Everything that the options name.

        Raises:
            click.UsageError: nothing is named. InputError: nothing of it could be used, or nothing but the deployment.
        """
        if not (deployment or metrics or logs or benches or observed or trace or model):
            raise click.UsageError("Give a deployment, --metrics, --log, --bench, --observed or --trace.")
        evidence = gather(
            deployment,
            metrics=list(metrics),
            interval_s=interval_s,
            logs=[Path(path) for path in logs],
            benches=[Path(path) for path in benches],
            observed=list(observed),
            trace=trace,
            engine_version=engine_version,
            gpu=gpu,
            model=model,
            objective=parse_objective(slo, goal),
        )
        is_asked = bool(metrics or logs or benches or observed)
        if evidence.tells_nothing or (is_asked and evidence.unusable and _shows_nothing(evidence)):
            raise InputError(f"Nothing was found in the evidence. {' '.join(evidence.unusable)}".strip())
        return evidence

    def report(self, evidence: Evidence) -> int:
        """Write the page; the exit code."""
        diagnosis = diagnose(evidence)
        if self._form == "terminal" and self._output is None:
            make_console().print(terminal_page(make_page(diagnosis)))
        else:
            self._write(self._text(diagnosis, evidence))
        return FINE if diagnosis.is_clean else FINDINGS

    def _text(self, diagnosis: Diagnosis, evidence: Evidence) -> str:
        if self._form == "json":
            return json.dumps(diagnosis_json(diagnosis), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        page = make_page(diagnosis)
        if self._form == "html":
            return html_page(page, plots_of(figures_of(evidence)))
        if self._form == "markdown":
            return markdown_page(page)
        console = make_console()
        with console.capture() as capture:
            console.print(terminal_page(page))
        return capture.get()

    def _write(self, text: str) -> None:
        if self._output is None:
            click.echo(text, nl=False)
        else:
            write_file(self._output, text)


def _shows_nothing(evidence: Evidence) -> bool:
    """Nothing was seen of the deployment, whether or not its flags are known."""
    return replace(evidence, effective=None).tells_nothing
