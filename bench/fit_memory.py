"""Fit the planner's memory coefficients on measured start-ups and write them as the catalogue's data file.

    python bench/fit_memory.py kv_startup_logs.csv --out src/headway/catalog/memory_coefficients.json

Five numbers for all models, cards and versions; each source counts the same. Rows that are off by more than the clip
(other programs on the card, connectors with buffers of their own) pull no harder than the clip.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import quantiles

from headway.planner.calibration import StartUp, by_source, judge, read_start_ups
from headway.planner.memory import MemoryCoefficients, coefficients

_CLIP = 0.12
_FITTED: Mapping[str, tuple[float, float]] = {
    "activation_scale": (0.7, 1.2),
    "non_torch_gib": (0.0, 1.5),
    "non_torch_group_gib": (0.0, 3.0),
    "context_gib": (0.0, 1.5),
    "cuda_graph_gib_per_layer": (0.005, 0.07),
}
"""Bounds within which each coefficient is searched."""


def main() -> None:
    """Search the coefficients one by one with shrinking steps, then write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    start_ups = [row for row in read_start_ups(arguments.path) if row.deployment is not None]
    fitted = _search(start_ups, coefficients())
    shares = [
        abs(answer.budget_share_error)
        for row in start_ups
        if (answer := judge(row, fitted)) is not None and answer.budget_share_error is not None
    ]
    fitted = replace(
        fitted,
        residual_share=round(quantiles(shares, n=10)[8], 4),
        source=f"bench/fit_memory.py on {len(start_ups)} measured vLLM start-ups, each source weighted equally",
    )
    arguments.out.write_text(json.dumps(asdict(fitted), indent=1) + "\n", encoding="utf-8")
    print(json.dumps(asdict(fitted), indent=1))
    print(f"loss {_loss(start_ups, fitted):.4f}")


def _search(start_ups: Sequence[StartUp], start: MemoryCoefficients) -> MemoryCoefficients:
    best, loss = start, _loss(start_ups, start)
    for step in (0.2, 0.1, 0.05, 0.02, 0.01):
        improved = True
        while improved:
            improved = False
            for name, (low, high) in _FITTED.items():
                for direction in (-1, 1):
                    value = min(high, max(low, getattr(best, name) + direction * step * (high - low)))
                    candidate = replace(best, **{name: round(value, 4)})
                    candidate_loss = _loss(start_ups, candidate)
                    if candidate_loss < loss - 1e-6:
                        best, loss, improved = candidate, candidate_loss, True
    return best


def _loss(start_ups: Sequence[StartUp], fitted: MemoryCoefficients) -> float:
    """Mean over sources of the mean clipped relative error of KV tokens."""
    judged = [answer for row in start_ups if (answer := judge(row, fitted)) is not None]
    groups = by_source(judged).values()
    means = [
        sum(min(_CLIP, abs(row.tokens_error)) for row in rows if row.tokens_error is not None) / len(rows)
        for rows in groups
    ]
    return sum(means) / len(means)


if __name__ == "__main__":
    main()
