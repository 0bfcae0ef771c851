"""Fit the roofline's coefficients on measured rows, and judge them on each source in turn, left out of the fit.

    python bench/fit_roofline.py measured_serving.csv --out src/headway/catalog/roofline_coefficients.json
    python bench/fit_roofline.py measured_serving.csv --judge           # the file's coefficients, no fit

Twelve numbers for all models, cards and versions; no source decides alone. Eleven are fitted on dense models; then the
twelfth, what the products of experts reach, on mixtures of experts with those eleven held. The steps of every row are
recorded by one simulation and priced again for each candidate (`headway.accuracy.step_recording`); what is printed at
the end is what simulations with the coefficients in question give. Rows of a 70B model on two H100 are never fitted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from headway.accuracy.measured_rows import MeasuredRow, Selection, by_source, select_rows
from headway.accuracy.row_errors import METRICS, RowError, row_errors
from headway.accuracy.row_simulation import prepare
from headway.accuracy.step_recording import Recording, merge, record
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import (
    RooflineCoefficients,
    age_factor,
    fitted_coefficients,
    is_before_v1,
)
from headway.executors.simulated.oracle import StepShape
from headway.executors.simulated.roofline import RIDGE, RooflineOracle, RooflineSetup

_CLIP = 0.5
"""A row that is further off, as a log ratio, pulls no harder: its assumptions are wrong, not the physics."""
_WEIGHTS = {"tpot": 1.0, "ttft": 0.15, "output_throughput": 0.3}
_SOURCE_POWER = 0.75
"""A source counts with its rows to this power: neither one row of a blog nor a thousand of one project decide."""
_PRIOR_PULL = 0.001
"""Holds coefficients that the rows at hand do not decide, as eager mode without the only source that has it."""
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "memory": (0.5, 1.0),
    "kv_memory": (0.3, 0.95),
    "compute": (0.2, 0.95),
    "narrow_gain": (0.05, 1.0),
    "experts": (0.05, 0.95),
    "network": (0.1, 0.95),
    "all_reduce_s": (1e-6, 3e-5),
    "layer_s": (5e-6, 1e-4),
    "eager_layer_s": (1e-4, 1e-3),
    "host_s": (1e-4, 5e-3),
    "host_v0_s": (1e-3, 2e-2),
    "host_request_s": (1e-7, 2e-4),
}
PRIOR = RooflineCoefficients(
    memory=0.92,
    kv_memory=0.9,
    compute=0.6,
    narrow_gain=0.6,
    experts=0.3,
    network=0.5,
    all_reduce_s=5e-6,
    layer_s=5e-5,
    eager_layer_s=5.3e-4,
    host_s=1e-3,
    host_v0_s=4e-3,
    host_request_s=5e-5,
)
"""Where the search starts. Launching a layer without graphs: 0.53 ms, from the rows of Splitwise's table that more GPUs
do not speed up (batch of one; Llama 2 70B and Bloom on four and eight A100 and H100: 0.38 to 0.70 ms a layer)."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row with its steps, and the same merged for fitting; `factors` make the merged answers exact where recorded."""

    row: MeasuredRow
    setup: RooflineSetup
    full: Recording
    merged: Recording
    factors: Mapping[str, float]

    @property
    def is_open(self) -> bool:
        """Requests come at a rate, so that the schedule depends on the prices."""
        return self.row.requests_per_s is not None

    def errors(self, coefficients: RooflineCoefficients) -> list[RowError]:
        """Errors of the whole recording's answers."""
        return row_errors(self.row, self.full.price(RooflineOracle(self.setup, coefficients)))


def main() -> None:
    """Fit, judge, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, help="write the coefficients here")
    parser.add_argument("--judge", action="store_true", help="no fit: errors of the catalogue's coefficients")
    parser.add_argument("--no-leave-out", action="store_true", help="errors of the fit on the rows it was made on")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    dense, mixtures = (select_rows(arguments.path, mixtures=flag) for flag in (False, True))
    for selection in (dense, mixtures):
        print_counts(selection)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        fitted = fitted_coefficients().coefficients if arguments.judge else PRIOR
        recorded = record_all(pool, [*dense.rows, *mixtures.rows], fitted)
        if not arguments.judge:
            fitted = search(recorded, fitted)
            recorded = record_open(pool, recorded, fitted)
            fitted = search(recorded, fitted)
        print(json.dumps(asdict(fitted), indent=1), flush=True)
        folds: dict[str, RooflineCoefficients] = {}
        if not arguments.judge and not arguments.no_leave_out:
            folds = leave_one_out(pool, recorded, fitted)
        jobs = [(item, folds.get(item.row.source, fitted)) for item in recorded]
        judged = [error for errors in pool.map(judge, jobs, chunksize=8) for error in errors]
    label = "each source left out of its fit" if folds else "in sample"
    is_moe = {item.row.row_id: item.row.model.is_moe for item in recorded}
    residuals = report([error for error in judged if not is_moe[error.row_id]], f"dense models, {label}")
    of_mixtures = report([error for error in judged if is_moe[error.row_id]], f"mixtures of experts, {label}")
    residuals |= {f"{metric}_experts": value for metric, value in of_mixtures.items()}
    if arguments.out is not None:
        write(arguments.out, fitted, residuals, dense, mixtures)


def print_counts(selection: Selection) -> None:
    """Rows kept and dropped, gate by gate."""
    print(f"{selection.num_read} rows read, {len(selection.rows)} selected")
    for gate, count in sorted(selection.dropped.items(), key=lambda item: -item[1]):
        print(f"  {count:5} {gate}")
    for source, rows in by_source(selection.rows).items():
        assumed = sum(row.assumed_version for row in rows)
        print(f"  {len(rows):5} of {source}, {assumed} without a release (assumed)")


def record_all(
    pool: ProcessPoolExecutor, rows: Sequence[MeasuredRow], coefficients: RooflineCoefficients
) -> list[Recorded]:
    """Recordings of all rows that can run; the others are said."""
    found = list(pool.map(_record, [(row, coefficients) for row in rows], chunksize=4))
    for row, item in zip(rows, found, strict=True):
        if isinstance(item, str):
            print(f"  {row.row_id} of {row.source} cannot run: {item}")
    return [item for item in found if isinstance(item, Recorded)]


def record_open(
    pool: ProcessPoolExecutor, recorded: Sequence[Recorded], coefficients: RooflineCoefficients
) -> list[Recorded]:
    """Open loops recorded again; in closed ones the schedule does not depend on the prices."""
    rows = [item.row for item in recorded if item.is_open]
    again = {item.row.row_id: item for item in record_all(pool, rows, coefficients)}
    return [again.get(item.row.row_id, item) for item in recorded]


def _record(job: tuple[MeasuredRow, RooflineCoefficients]) -> Recorded | str:
    row, coefficients = job
    try:
        simulation = prepare(row, coefficients)
    except ConfigError as error:
        return error.message
    recording, _ = record(simulation.deployment, simulation.workload)
    coarse, factors = merge(recording, simulation.deployment.oracle)
    return Recorded(row, simulation.setup, recording, coarse, factors)


def judge(job: tuple[Recorded, RooflineCoefficients]) -> list[RowError]:
    """Errors with these coefficients: of a simulation in an open loop; else of the recording, which is the same."""
    item, coefficients = job
    if item.is_open:
        return row_errors(item.row, prepare(item.row, coefficients).predict())
    return item.errors(coefficients)


def leave_one_out(
    pool: ProcessPoolExecutor, recorded: Sequence[Recorded], start: RooflineCoefficients
) -> dict[str, RooflineCoefficients]:
    """A fit without each source; what it alone decides goes back to the prior."""
    sources = list(by_source(item.row for item in recorded))
    jobs = [([item for item in recorded if item.row.source != source], start) for source in sources]
    return dict(zip(sources, pool.map(_search_job, jobs), strict=True))


def _search_job(job: tuple[Sequence[Recorded], RooflineCoefficients]) -> RooflineCoefficients:
    return search(*job)


def search(recorded: Sequence[Recorded], start: RooflineCoefficients) -> RooflineCoefficients:
    """All but one coefficient on dense models, then that one on mixtures of experts."""
    dense = [item for item in recorded if not item.row.model.is_moe]
    mixtures = [item for item in recorded if item.row.model.is_moe]
    best = _search(dense, start, [name for name in _BOUNDS if name != "experts"])
    return _search(mixtures, best, ["experts"]) if mixtures else best


def _search(recorded: Sequence[Recorded], start: RooflineCoefficients, names: Sequence[str]) -> RooflineCoefficients:
    """Pattern search over logarithms: one coefficient at a time, with steps that halve."""
    loss = loss_of(recorded)
    best, lowest = start, loss(start)
    for step in (0.4, 0.2, 0.1, 0.05, 0.025, 0.0125):
        improved = True
        while improved:
            improved = False
            for name in names:
                low, high = _BOUNDS[name]
                for sign in (1, -1):
                    value = min(high, max(low, getattr(best, name) * math.exp(sign * step)))
                    candidate = replace(best, **{name: float(f"{value:.4g}")})
                    found = loss(candidate)
                    if found < lowest - 1e-5:
                        best, lowest, improved = candidate, found, True
                        break
    return best


_LIMITS = 10
"""Numbers of `step_limits`."""


class Arrays:
    """All steps of all rows as arrays, so that a candidate is priced at once; the formula is the oracle's own."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self.recorded = recorded
        limits, chunks, rows, targets = [], [], [], []
        num_steps = 0
        for index, item in enumerate(recorded):
            oracle = RooflineOracle(item.setup, PRIOR)
            for step in item.merged.steps:
                shape = step.shape
                weights = (step.tpot_weight, step.ttft_weight, step.num_steps, shape.num_decodes + len(shape.chunks))
                limits.append((*step_limits(oracle, shape), index, *weights))
                for chunk in step.shape.chunks:
                    chunks += [(num_steps, *pair) for pair in oracle.chunk_limits(chunk)]
                num_steps += 1
            setup, is_v0 = oracle.setup, is_before_v1(item.row.engine_version)
            rows.append(
                (
                    oracle.narrow_ratio,
                    oracle.num_plain_layers,
                    oracle.num_all_reduces,
                    setup.enforce_eager,
                    is_v0,
                    item.merged.is_async,
                    item.merged.idle_s,
                    age_factor(item.row.engine_version),
                )
            )
            for error in item.errors(PRIOR):
                factor = item.factors["output_throughput" if "output" in error.metric else f"mean_{error.metric}_ms"]
                targets.append((index, list(METRICS).index(error.metric), error.measured / factor))
        self.steps = np.array(limits, dtype=float).T
        self.of_row = self.steps[_LIMITS].astype(int)
        self.chunks = np.array(chunks, dtype=float).T
        self.rows = np.array(rows, dtype=float).T
        self.targets = np.array(targets, dtype=float).T

    def prices(self, fitted: RooflineCoefficients) -> np.ndarray:
        """Seconds of each step."""
        dense_m, dense_c, expert_m, expert_c, passes, state, head_m, head_c, network, kv = self.steps[:_LIMITS]
        ratio, layers, reduces, eager, is_v0, is_async, _, age = self.rows[:, self.of_row]
        gain = ratio**fitted.narrow_gain
        device = ridge(dense_m / fitted.memory, dense_c / (fitted.compute * gain))
        device += ridge(expert_m / fitted.memory, expert_c / (fitted.experts * gain))
        device += (passes + state) / fitted.memory
        device += ridge(head_m / fitted.memory, head_c / fitted.compute)
        device += layers * fitted.layer_s + reduces * fitted.all_reduce_s + network / fitted.network
        device += kv / fitted.kv_memory
        step, compute, memory = self.chunks
        chunk_s = np.maximum(compute / fitted.compute, memory / fitted.kv_memory)
        device += np.bincount(step.astype(int), chunk_s, minlength=len(device))
        host = age * (
            np.where(is_v0 > 0, fitted.host_v0_s, fitted.host_s) + self.steps[_LIMITS + 4] * fitted.host_request_s
        )
        device = np.maximum(device, eager * (layers * fitted.eager_layer_s + host))
        host = np.where(eager > 0, 0.0, host)
        return np.asarray(np.where(is_async > 0, np.maximum(device, host), device + host))

    def answers(self, fitted: RooflineCoefficients) -> np.ndarray:
        """Row × metric, as `Recording.price` gives them."""
        seconds = self.prices(fitted)
        sums = [
            np.bincount(self.of_row, seconds * weight, minlength=len(self.recorded)) for weight in self.steps[-4:-1]
        ]
        decoding = np.array([max(1, item.merged.num_decoding) for item in self.recorded])
        requests = np.array([item.merged.num_requests for item in self.recorded])
        tokens = np.array([item.merged.num_output_tokens for item in self.recorded])
        return np.array([sums[0] / decoding * 1e3, sums[1] / requests * 1e3, tokens / (sums[2] + self.rows[6])])

    def check(self) -> None:
        """The arrays and the oracle must agree."""
        answers = self.answers(PRIOR)
        for index, item in enumerate(self.recorded):
            exact = item.merged.price(RooflineOracle(item.setup, PRIOR))
            for value, key in zip(
                answers[:, index], ("mean_tpot_ms", "mean_ttft_ms", "output_throughput"), strict=True
            ):
                assert abs(value / exact[key] - 1) < 1e-9, (item.row.row_id, key, value, exact[key])


def step_limits(oracle: RooflineOracle, shape: StepShape) -> tuple[float, ...]:
    """Physical limits of a step's rows and of its decodes' KV."""
    rows = oracle.row_limits(shape.num_tokens, shape.num_decodes + len(shape.chunks), shape.num_sampled)
    return (*rows, oracle.kv_limit_s(shape.num_decodes, shape.num_context_tokens))


def ridge(memory: np.ndarray, compute: np.ndarray) -> np.ndarray:
    """As the oracle's."""
    return np.asarray((memory**RIDGE + compute**RIDGE) ** (1.0 / RIDGE))


def loss_of(recorded: Sequence[Recorded]) -> Callable[[RooflineCoefficients], float]:
    """Weighted, clipped log error, with a faint pull to the prior; a source counts less than its rows."""
    fitting = [item for item in recorded if not item.row.is_held_out]
    arrays = Arrays(fitting)
    arrays.check()
    rows, metrics, measured = arrays.targets[0].astype(int), arrays.targets[1].astype(int), arrays.targets[2]
    sources = sorted({item.row.source for item in fitting})
    counts = Counter(item.row.source for item in fitting)
    total = sum(counts[source] ** _SOURCE_POWER for source in sources)
    weights = np.array(
        [
            list(_WEIGHTS.values())[metric] / counts[fitting[row].row.source] ** (1 - _SOURCE_POWER) / total
            for row, metric in zip(rows, metrics, strict=True)
        ]
    )

    def loss(coefficients: RooflineCoefficients) -> float:
        errors = np.abs(np.log(arrays.answers(coefficients)[metrics, rows] / measured))
        pull = sum(math.log(getattr(coefficients, name) / getattr(PRIOR, name)) ** 2 for name in _BOUNDS)
        return float((np.minimum(errors, _CLIP) * weights).sum()) + _PRIOR_PULL * pull

    return loss


def report(errors: Sequence[RowError], label: str) -> dict[str, float]:
    """Print medians by source, GPU and model; return the macro-medians."""
    residuals = {}
    for metric in METRICS:
        of_metric = [error for error in errors if error.metric == metric]
        print(f"\n{metric}: |error|, {label}")
        for key in ("source", "gpu", "model"):
            groups: dict[str, list[float]] = {}
            for error in of_metric:
                groups.setdefault(str(getattr(error, key)), []).append(error.error)
            for name, values in sorted(groups.items()):
                absolute = median(map(abs, values))
                print(f"  {key:6} {name:46} n {len(values):4}  median {absolute:6.1%}  bias {median(values):+6.1%}")
            if key == "source" and groups:
                medians = [median(map(abs, values)) for values in groups.values()]
                residuals[metric] = round(mean(medians), 4)
                print(f"  macro: mean of sources' medians {mean(medians):.1%}, their median {median(medians):.1%}")
                print(f"  all rows: median {median(abs(e.error) for e in of_metric):.1%}")
    held = [error for error in errors if error.is_held_out and error.metric == "tpot"]
    for error in held:
        print(f"  held out {error.row_id} {error.source:24} TPOT {error.measured:7.2f} ms, {error.error:+.1%}")
    return residuals


def write(
    path: Path,
    fitted: RooflineCoefficients,
    residuals: Mapping[str, float],
    dense: Selection,
    mixtures: Selection,
) -> None:
    """The catalogue's data file."""
    record = {
        "coefficients": asdict(fitted),
        "residuals": residuals,
        "source": f"bench/fit_roofline.py on {len(dense.rows)} measured vLLM rows of dense models from "
        f"{len(by_source(dense.rows))} sources, and for `experts` {len(mixtures.rows)} rows of mixtures from "
        f"{len(by_source(mixtures.rows))}; residuals are medians of the absolute error, averaged over sources, each "
        "left out of its fit",
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
