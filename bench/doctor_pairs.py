"""How far the doctor's predictions of changes are from what the changes did, on measured runs.

    python -m bench.doctor_pairs --rows ../shared/data/measured_serving_open.csv

Prints Markdown. First pairs of runs that agree in hardware, release and load and differ in exactly one setting: the
doctor gets the first run's flags, load and client figures, fits its model to them, and predicts the second. Then a
study of many settings at once under one load: the model is fitted to the run that is nearest to the release's
defaults, and predicts the throughput of all others; the rank correlation says whether it would choose well among them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench.measured_pairs import (
    METRICS,
    JudgedPair,
    MeasuredRun,
    Pair,
    evidence_of,
    find_pairs,
    judge,
    read_runs,
    spearman,
)
from headway.doctor.figures import figures_of
from headway.doctor.prediction.counterfactual import fit
from headway.doctor.prediction.oracle_fit import FittedModel

_PAIRS, _STUDY = "vedanti-l40s-ofat", "akamas-a10g-study"
_CONDITIONS: Mapping[str, Mapping[str, Any]] = {
    _PAIRS: {"max_model_len": 8192, "num_speculative_tokens": 3},
}
"""What the sources' own scripts set and their rows leave out (vedanti02/vllm-optimization-bench, src/vob/server.py)."""
_NAMES = {"output_throughput": "output tok/s", "mean_tpot_ms": "mean TPOT", "median_ttft_ms": "median TTFT"}


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=Path, required=True, help="CSV of measured rows")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    runs = read_runs(arguments.rows, _PAIRS, _CONDITIONS[_PAIRS])
    pairs = find_pairs(runs)
    undone = [pair for pair in (pair.reversed() for pair in pairs) if pair is not None]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        print_pairs(runs, list(pool.map(judge, pairs)), list(pool.map(judge, undone)))
        print_study(read_runs(arguments.rows, _STUDY, {}))


def print_pairs(runs: Sequence[MeasuredRun], judged: Sequence[JudgedPair], undone: Sequence[JudgedPair]) -> None:
    """Each pair, then how many are right: as listed, and with the same changes undone beside them."""
    print(f"## {_PAIRS}: {len(runs)} configurations, {len(judged)} pairs that differ in one setting\n")
    print(
        "| load | setting | residual | " + " | ".join(f"{name}: measured, predicted" for name in _NAMES.values()) + " |"
    )
    print("| --- | --- | --: |" + " --: |" * len(_NAMES))
    for item in judged:
        before, after = (_text(value) for value in item.pair.values)
        residual = item.check.residual if item.check is not None else None
        cells = [_effect(item, metric) for metric in METRICS]
        shown = f"{residual:.0%}" if residual is not None else ""
        print(f"| {_load(item.pair)} | {item.pair.setting}: {before} → {after} | {shown} | " + " | ".join(cells) + " |")
    columns = ("direction right", "after within 20 %", "effect within 20 %", "within the error bar", "median bar")
    print(f"\n| metric | pairs | {' | '.join(columns)} |")
    print("| --- | --: |" + " --: |" * len(columns))
    for metric, name in _NAMES.items():
        print_counts(name, metric, judged)
        print_counts(f"{name}, changes undone too", metric, [*judged, *undone])
    repeats = [run.spread for run in runs if len(run.row_ids) > 1]
    for metric, name in _NAMES.items():
        spreads = [spread[metric] for spread in repeats if metric in spread]
        if spreads:
            print(f"\nRepeats of {len(spreads)} configurations differ in {name} by {median(spreads):.1%} (median).")
    for item in judged:
        if item.reason:
            print(f"\nNot predicted: {item.pair.setting} under {_load(item.pair)}: {item.reason}")


def print_counts(name: str, metric: str, judged: Sequence[JudgedPair]) -> None:
    """How many effects on one metric are right, by each measure."""
    effects = [item.effects[metric] for item in judged if metric in item.effects]
    counts = (
        sum(effect.is_direction_right for effect in effects),
        sum(effect.is_after_close for effect in effects),
        sum(effect.is_size_close for effect in effects),
        sum(effect.is_covered for effect in effects),
    )
    widths = [width for effect in effects if (width := effect.half_width) is not None]
    shown = f"± {median(widths):.0%}" if widths else ""
    print(f"| {name} | {len(effects)} | " + " | ".join(map(str, counts)) + f" | {shown} |")


def print_study(runs: Sequence[MeasuredRun]) -> None:
    """Measured against predicted throughput of all runs but the one that the model was fitted to."""
    base = min(runs, key=_distance)
    evidence = evidence_of(base)
    model = fit(evidence, figures_of(evidence))
    others = [run for run in runs if run is not base]
    predicted = [_throughput(model, run) for run in others]
    measured = [run.measured["output_throughput"] for run in others]
    ratios = sorted(ours / theirs for ours, theirs in zip(predicted, measured, strict=True))
    print(f"\n## {_STUDY}: {len(runs)} runs, fitted to one, {len(others)} predicted\n")
    print(f"{model.check.note}\n")
    print("| Spearman | predicted / measured: median | 10th to 90th percentile |\n| --: | --: | --: |")
    low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
    print(f"| {spearman(predicted, measured):.2f} | {median(ratios):.2f} | {low:.2f} to {high:.2f} |")


def _distance(run: MeasuredRun) -> int:
    """How many of its written settings are not the release's defaults."""
    effective = evidence_of(run).effective
    bare = evidence_of(_bare(run)).effective
    assert effective is not None and bare is not None
    return sum(effective.value(name) != bare.value(name) for name in run.settings)


def _bare(run: MeasuredRun) -> MeasuredRun:
    settings = {"model": run.settings["model"]}
    return MeasuredRun(run.row_ids, run.deployment, run.load, settings, run.gpu, run.engine_version, run.offered)


def _throughput(model: FittedModel, run: MeasuredRun) -> float:
    changes = {name: value for name, value in run.settings.items() if name != "model"}
    summary = model.simulate(model.deployment.changed(changes, must_start=False))
    return float(summary["output_throughput"] or 0.0)


def _effect(item: JudgedPair, metric: str) -> str:
    effect = item.effects.get(metric)
    if effect is None:
        return ""
    marks = "" if effect.is_direction_right else " (!)"
    return f"{effect.measured - 1:+.1%}, {effect.predicted - 1:+.1%}{marks}"


def _load(pair: Pair) -> str:
    offered = pair.before.offered
    return f"{offered.mean_prompt_tokens:.0f} / {offered.mean_output_tokens:.0f} × {offered.concurrency}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("method"))
    return "off" if value is None or value is False else "on" if value is True else str(value)


if __name__ == "__main__":
    main()
