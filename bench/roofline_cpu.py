"""How close steps of the int8 engine come to what this machine can do, and what keeps them from it.

    python -m bench.roofline_cpu [--threads N] [--rounds 3] [--json FILE]

Each round measures the ceilings, then every kind of step: arithmetic on bytes and on floats by loops that touch
registers alone, the product kernel at its best shape, and reading of a stream much larger than the last cache. A step
is one call of `Engine.step`, scheduling included; a round has the median of its steps, and the table the median of the
rounds, with the least and the largest behind it. What a step must compute and read is counted from the model's shape:
products and attention in multiplications and additions, each weight once, keys and values of earlier steps once.

Shares are of the threads' time, from the same steps on kernels that are timed call by call. `waiting` is what no kernel
accounts for within the native call: threads that wait for each other or that the system has put aside. `Python` is the
rest of the step, in which all threads but one are idle.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

import torch

from bench.engine_steps import MeasuredStep, Subject, Work, work_of
from bench.kernels import four_bit
from bench.native.library import Ceilings, measure_ceilings
from headway.executors.torch.native import KernelEngine

_SHAPES = ((960, 576), (3072, 576), (576, 1536))
_ROWS = (24, 96, 264)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of step: `num_tokens` of one prompt behind `context` others, or one token of each of some requests."""

    is_prefill: bool
    size: int
    context: int

    def __str__(self) -> str:
        if self.is_prefill:
            return f"prefill of {self.size}" + (f" behind {self.context}" if self.context else "")
        return f"decode of {self.size} at {self.context}"

    def steps(self, subject: Subject, repeats: int) -> list[MeasuredStep]:
        """Run it."""
        if self.is_prefill:
            return subject.prefills(self.size, context=self.context, repeats=max(3, repeats // 3))
        return subject.decodes(self.size, context=self.context, repeats=repeats)


CASES = (
    *(Case(True, 256, 0), Case(True, 512, 0), Case(True, 256, 1792)),
    *(Case(False, size, 256) for size in (1, 8, 32, 64)),
)


@dataclass(slots=True)
class Figures:
    """One kind of step in one round; shares and fractions from 0 to 1."""

    milliseconds: float
    work: Work
    product_rate: float
    """Operations a second."""
    of_dots: float
    of_best_product: float
    attention_of_fmas: float
    memory_rate: float
    """Bytes a second."""
    of_memory: float
    shares: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=30, help="decode steps of a round")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    plain, timed = Subject(args.threads), Subject(args.threads, timed=True)
    ceilings: list[Ceilings] = []
    best_products: list[float] = []
    rounds: list[dict[str, Figures]] = []
    for _ in range(args.rounds):
        ceilings.append(measure_ceilings(plain.num_threads))
        best_products.append(best_product(plain.engine))
        bounds = (ceilings[-1], best_products[-1])
        rounds.append({str(case): _figures(case, plain, timed, *bounds, args.repeats) for case in CASES})
    engine = plain.engine
    print(f"{plain.model.name}, int8, {engine.isa}, {engine.num_threads} threads, {platform.machine()}, {date.today()}")
    print(f"Products of bytes on registers: {_rates([c.dots for c in ceilings], 'Gop/s')}")
    print(f"The product kernel at its best shape: {_rates(best_products, 'Gop/s')}")
    print(f"Products of floats on registers: {_rates([c.fmas for c in ceilings], 'Gop/s')}")
    print(f"Reading memory: {_rates([c.memory for c in ceilings], 'GB/s')}")
    print(f"Reading the last cache: {_rates([c.cache for c in ceilings], 'GB/s')}")
    for line in [*_fractions(rounds), "", *_shares(rounds)]:
        print(line)
    if args.json:
        kept = {
            "date": str(date.today()),
            "isa": plain.engine.isa,
            "num_threads": plain.num_threads,
            "ceilings": [asdict(one) for one in ceilings],
            "best_products": best_products,
            "rounds": [{name: asdict(figures) for name, figures in one.items()} for one in rounds],
        }
        args.json.write_text(json.dumps(kept, indent=1))


def best_product(engine: KernelEngine, repeats: int = 15) -> float:
    """Operations a second of `multiply` on all threads, at the shape where it is fastest."""
    best = 0.0
    for num_outputs, num_inputs in _SHAPES:
        packed = engine.pack(four_bit(torch.randn(num_outputs, num_inputs)))
        for num_rows in _ROWS:
            rows = torch.randn(num_rows, num_inputs)
            for _ in range(repeats):
                begun = time.perf_counter()
                engine.multiply(rows, packed)
                best = max(best, 2 * num_rows * num_outputs * num_inputs / (time.perf_counter() - begun))
    return best


def _figures(case: Case, plain: Subject, timed: Subject, ceilings: Ceilings, best: float, repeats: int) -> Figures:
    steps = case.steps(plain, repeats)
    seconds = statistics.median(step.seconds for step in steps)
    work = work_of(plain.model.weights, steps[len(steps) // 2].shares)
    product_rate, memory_rate = work.product_ops / seconds, (work.weight_bytes + work.kv_bytes) / seconds
    return Figures(
        milliseconds=1e3 * seconds,
        work=work,
        product_rate=product_rate,
        of_dots=product_rate / ceilings.dots,
        of_best_product=product_rate / best,
        attention_of_fmas=work.attention_ops / seconds / ceilings.fmas,
        memory_rate=memory_rate,
        of_memory=memory_rate / ceilings.memory,
        shares=shares_of(case.steps(timed, repeats), timed.num_threads),
    )


def shares_of(steps: Sequence[MeasuredStep], num_threads: int) -> dict[str, float]:
    """What the threads' time goes into: kernels, waiting, Python; they sum to 1."""
    total = num_threads * sum(step.seconds for step in steps)
    shares = {name: sum(step.kernel_s[name] for step in steps) / total for name in steps[0].kernel_s}
    python = num_threads * sum(step.seconds - step.forward_s for step in steps) / total
    return shares | {"waiting": 1.0 - python - sum(shares.values()), "Python": python}


# ---------------------------------------------------------------- what is printed


def limit_of(rounds: Sequence[Figures]) -> str:
    """What explains most of a step's time: reading weights, products, attention, waiting or Python."""
    explained = {
        "memory": statistics.median(one.of_memory for one in rounds),
        "products": statistics.median(one.of_best_product for one in rounds),
        "attention": statistics.median(one.shares["attend"] for one in rounds),
        "waiting": statistics.median(one.shares["waiting"] for one in rounds),
        "Python": statistics.median(one.shares["Python"] for one in rounds),
    }
    return max(explained, key=lambda name: explained[name])


def _fractions(rounds: Sequence[dict[str, Figures]]) -> list[str]:
    columns = ("step", "ms", "products, Gop", "of registers", "of best product", "memory, MB", "of memory", "limit")
    lines = ["", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in rounds[0]:
        ours = [one[name] for one in rounds]
        work = ours[0].work
        cells = (
            name,
            _spread([one.milliseconds for one in ours], ".2f"),
            f"{work.product_ops / 1e9:.2f}",
            _spread([100 * one.of_dots for one in ours], ".0f", " %"),
            _spread([100 * one.of_best_product for one in ours], ".0f", " %"),
            f"{(work.weight_bytes + work.kv_bytes) / 1e6:.1f}",
            _spread([100 * one.of_memory for one in ours], ".0f", " %"),
            limit_of(ours),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _shares(rounds: Sequence[dict[str, Figures]]) -> list[str]:
    columns = (
        *("step", "products", "head", "attention", "attention of float peak", "to bytes, norms", "rotation, KV"),
        *("waiting", "Python"),
    )
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name in rounds[0]:
        ours = [one[name] for one in rounds]

        def share(*parts: str, ours: Sequence[Figures] = ours) -> str:
            return _spread([100 * sum(one.shares[part] for part in parts) for one in ours], ".0f", " %")

        cells = (
            *(name, share("qkv", "output, down", "gate, up"), share("head"), share("attend")),
            _spread([100 * one.attention_of_fmas / max(one.shares["attend"], 1e-9) for one in ours], ".0f", " %"),
            *(share("quantize", "norm_quantize"), share("rotate_and_store"), share("waiting"), share("Python")),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _spread(values: Sequence[float], form: str, unit: str = "") -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}}){unit}"


def _rates(values: Sequence[float], unit: str) -> str:
    return _spread([value / 1e9 for value in values], ".1f") + f" {unit}"


if __name__ == "__main__":
    main()
