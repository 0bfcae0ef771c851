"""Results of a race as a table: each peer's best setting of each round, medians over rounds, and ratios to headway."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Result = Mapping[str, Any]

_COLUMNS = (
    ("total_tokens_per_s", 1, "tok/s"),
    ("decode_tokens_per_s", 1, "decode tok/s of one request"),
    ("ttft_p99_s", 1, "TTFT p99 s"),
    ("itl_p50_s", 1e3, "ITL p50 ms"),
    ("itl_p99_s", 1e3, "ITL p99 ms"),
    ("peak_rss_mib", 1, "MiB"),
    ("start_up_s", 1, "start s"),
    ("budget", 1, "budget"),
)


def table(results: Sequence[Result], formats: Mapping[str, str], kind: str, *, online: bool) -> str:
    """Markdown, with one line a peer.

    What counts is throughput where all requests come at once, the decode rate of a single request, and the 99th
    percentile of the gaps between tokens where requests arrive over time. The ratio is how many times better headway is
    within a round: at its best setting against the peer's best.

    Args:
        formats: what each peer calls its weights.
        kind: "mixed" or "single".
    """
    key = "itl_p99_s" if online else "decode_tokens_per_s" if kind == "single" else "total_tokens_per_s"
    best = _best(results, key, smaller=online)
    lines = [
        "| peer | weights | headway is better by (range) | " + " | ".join(title for _, _, title in _COLUMNS) + " |",
        "|---" * (3 + len(_COLUMNS)) + "|",
    ]
    for name in dict.fromkeys(result["peer"] for result in results):
        runs = [result for (peer, _), result in best.items() if peer == name]
        if not runs:
            lines.append(f"| {name} | {formats[name]} | failed" + " |" * (1 + len(_COLUMNS)))
            continue
        ratios = [
            _ratio(best["headway", run["round"]], run, key, online) for run in runs if ("headway", run["round"]) in best
        ]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        cells = [_shown(runs, column, scale) for column, scale, _ in _COLUMNS]
        lines.append(f"| {name} | {formats[name]} | {spread} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _best(results: Sequence[Result], key: str, *, smaller: bool) -> dict[tuple[str, int], Result]:
    """Of each peer and round, the run with the best value."""
    best: dict[tuple[str, int], Result] = {}
    for result in results:
        if result.get(key) is None:
            continue
        place = (result["peer"], result["round"])
        if place not in best or (result[key] < best[place][key]) == smaller:
            best[place] = result
    return best


def _ratio(ours: Result, theirs: Result, key: str, smaller: bool) -> float:
    return float(theirs[key] / ours[key]) if smaller else float(ours[key] / theirs[key])


def _shown(runs: Sequence[Result], key: str, scale: float) -> str:
    values = [scale * run[key] for run in runs if run.get(key) is not None]
    if not values:
        return ""
    middle = statistics.median(values)
    return f"{middle:.0f}" if middle >= 100 else f"{middle:.3g}"
