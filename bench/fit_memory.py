"""Fit the planner's memory coefficients on measured start-ups and write them as the catalogue's data file.

    python -m bench.fit_memory kv_startup_logs.csv --out src/headway/catalog/memory_coefficients.json

Eight sizes for all models, cards and versions; each source counts the same. Most are seen by few rows, so each is held
near a value expected beforehand, by its own uncertainty: a row must be clearly better for a size to move. Rows that are
off by more than the clip (other programs on the card, connectors with buffers of their own) pull no harder than it.
Rows that name neither a release nor its month have no part in the fit. The printed error is that of sources left out of
the fit in turn.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.planner.calibration import Judged, StartUp, by_source, judge, read_start_ups
from headway.planner.memory import MemoryCoefficients, coefficients
from headway.planner.plan import make_plan

_CLIP = 0.12
_EXPECTED: Mapping[str, tuple[float, float]] = {
    "kernels_gib": (0.1, 0.1),
    "context_gib": (0.4, 0.15),
    "collectives_gib": (0.6, 0.3),
    "nvlink_collectives_gib": (2.0, 0.3),
    "group_gib": (0.3, 0.3),
    "cached_gib": (0.7, 0.3),
    "cuda_graph_gib_per_layer": (0.018, 0.006),
    "cuda_graph_gib_per_layer_and_size": (0.0003, 0.0001),
}
"""Expected size and its uncertainty, in GiB. Kernels: cuBLAS's 32 MiB and code loaded at first use. Context: 0.3 to 0.5
GiB by nvidia-smi on idle cards. Collectives: vLLM's own example has 0.5 GiB after loading and 1 after profiling; with
NVLink two H100 had 1.8 GiB more than one (vLLM pull request 10511). Graphs: 1 to 2 GiB for 51 sizes of 28 to 48 layers
in logs, 0.17 GiB estimated for a few sizes of 64. The rest: the order of what logs show between versions that count
them and versions that do not."""
_PULL = 0.001
"""Relative error of tokens that one uncertainty of distance from the expected size costs."""
_COVERAGE = 0.9
_SMALL = 0.01
"""GiB by which a size is moved to see what it does."""


def main() -> None:
    """Fit on all rows, measure the range's width on sources left out, then write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    start_ups = [row for row in read_start_ups(arguments.path) if row.deployment is not None]
    models = [model for row in start_ups if (model := _linear(row)) is not None]
    fitted = _fit(models)
    left_out = leave_one_source_out(start_ups)
    fitted = replace(
        fitted,
        error_gib=_error_gib(left_out, fitted.error_share),
        source=f"bench/fit_memory.py on {len(models)} measured vLLM start-ups, each source weighted equally",
    )
    arguments.out.write_text(json.dumps(asdict(fitted), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(asdict(fitted), indent=1))


def _fit(models: Sequence[_Linear]) -> MemoryCoefficients:
    """Search the sizes one by one with shrinking steps, from what is expected."""
    best = {name: expected for name, (expected, _) in _EXPECTED.items()}
    loss = _loss(models, best)
    for step in (1.0, 0.5, 0.2, 0.1):
        improved = True
        while improved:
            improved = False
            for name, (_, spread) in _EXPECTED.items():
                for direction in (-1, 1):
                    value = max(0.0, best[name] + direction * step * spread)
                    candidate = {**best, name: round(value, 6)}
                    candidate_loss = _loss(models, candidate)
                    if candidate_loss < loss - 1e-6:
                        best, loss, improved = candidate, candidate_loss, True
    return _with(best)


def _with(sizes: Mapping[str, float]) -> MemoryCoefficients:
    changes: dict[str, Any] = dict(sizes)
    return replace(coefficients(), **changes)


@dataclass(frozen=True, slots=True)
class _Linear:
    """A start-up's planned tokens over the measured ones as a function of the sizes."""

    source: str
    most: float
    """Tokens with all sizes at 0, as a share of the measured ones."""
    losses: Mapping[str, float]
    """By how much one GiB of each size lowers that share."""

    def error(self, sizes: Mapping[str, float]) -> float:
        return max(0.0, self.most - sum(self.losses[name] * size for name, size in sizes.items())) - 1


def _linear(row: StartUp) -> _Linear | None:
    """Memory is linear in the sizes, so a plan without and with each tells all; None where nothing can be planned, and
    where the row names neither a release nor its month, so that what its profiling saw is not known."""
    if not row.kv_cache_tokens or row.deployment is None or len(row.versions) > 1:
        return None
    deployment = replace(row.deployment, engine_version=row.versions[0])
    try:
        plan = make_plan(deployment, _with(dict.fromkeys(_EXPECTED, 0.0)))
    except ConfigError:
        return None
    available, tokens = plan.available_kv_cache_bytes, plan.kv_cache_tokens.likely / row.kv_cache_tokens
    losses = {}
    for name in _EXPECTED:
        one = make_plan(deployment, _with({**dict.fromkeys(_EXPECTED, 0.0), name: _SMALL}))
        losses[name] = tokens * (available - one.available_kv_cache_bytes) / max(1, available) / _SMALL
    return _Linear(row.source, tokens, losses)


def leave_one_source_out(start_ups: Sequence[StartUp]) -> list[Judged]:
    """Every row, judged with sizes that were fitted on the other sources."""
    models = [model for row in start_ups if (model := _linear(row)) is not None]
    answers: list[Judged] = []
    for source in dict.fromkeys(row.source for row in start_ups):
        others = _fit([model for model in models if model.source != source])
        answers += [
            answer
            for row in start_ups
            if row.source == source and (answer := judge(row, others)) is not None and answer.tokens_error is not None
        ]
    return answers


def _loss(models: Sequence[_Linear], sizes: Mapping[str, float]) -> float:
    """Mean over sources of the mean clipped relative error of KV tokens, and the pull towards what is expected."""
    groups: dict[str, list[float]] = defaultdict(list)
    for model in models:
        groups[model.source].append(min(_CLIP, abs(model.error(sizes))))
    distance = sum(((sizes[name] - expected) / spread) ** 2 for name, (expected, spread) in _EXPECTED.items())
    return sum(sum(errors) / len(errors) for errors in groups.values()) / len(groups) + _PULL * distance / 2


def _error_gib(left_out: Sequence[Judged], share: float) -> float:
    """The constant part of the error that covers nine of ten rows left out, each source weighted equally.

    Start-ups on cards that share the host's memory have their own margin and are left aside here.
    """
    weighted: list[tuple[float, float]] = []
    for rows in by_source(left_out).values():
        for row in rows:
            needed = math.sqrt(max(0.0, row.budget_error_gib**2 - (share * row.beside_gib) ** 2))
            if not row.on_integrated:
                weighted.append((needed, 1 / len(rows)))
    weighted.sort()
    target, reached = _COVERAGE * sum(weight for _, weight in weighted), 0.0
    for needed, weight in weighted:
        reached += weight
        if reached >= target:
            return round(needed, 2)
    return 0.0


if __name__ == "__main__":
    main()
