"""Each kernel by itself: how fast, and how close to what the machine can do.

Times are of the processor, on one thread, so that other programs disturb them little; take the best of --repeats.

    python bench/kernels.py [--isa avx512] [--repeats 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from headway.executors.torch import load
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.native import KernelEngine
from headway.executors.torch.native.library import GROUP

_SHAPES = ((960, 576, "qkv"), (576, 576, "output"), (3072, 576, "gate, up"), (576, 1536, "down"), (49152, 576, "head"))
"""The matrices of SmolLM2-135M: outputs, inputs."""
_ROWS = (1, 6, 32, 256)
_MEGABYTE = 1e6


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least processor time of a few runs."""
    times = []
    for _ in range(repeats):
        started_at = time.thread_time()
        work()
        times.append(time.thread_time() - started_at)
    return min(times)


def products(engine: KernelEngine, repeats: int) -> Iterator[str]:
    """The int8 matrix product, quantisation of its rows included; weights of 4 bits in the layers, of 8 in the head."""
    for num_outputs, num_inputs, name in _SHAPES:
        exact = torch.randn(num_outputs, num_inputs)
        packed = engine.pack(exact if name == "head" else four_bit(exact))
        for num_rows in _ROWS:
            if num_rows * num_outputs > 2**22:
                continue
            rows = torch.randn(num_rows, num_inputs)
            seconds = best_seconds(lambda rows=rows, packed=packed: engine.multiply(rows, packed), repeats)  # type: ignore[misc]
            rate, bandwidth = (
                amount / seconds / 1e9 for amount in (2 * num_rows * exact.numel(), packed.panels.nbytes)
            )
            yield f"{name:9} {num_rows:4} rows {seconds * 1e6:8.0f} us {rate:5.0f} Gop/s {bandwidth:5.1f} GB/s weights"


def four_bit(weight: torch.Tensor) -> torch.Tensor:
    """The same on sixteen levels for every 32 inputs, as 4-bit files have them."""
    groups = weight.view(len(weight), -1, GROUP)
    least = groups.amin(-1, keepdim=True).half().float()
    scale = ((groups.amax(-1, keepdim=True) - least) / 15).half().float()
    return (least + scale * ((groups - least) / scale).round().clamp(0, 15)).view_as(weight)


def quantisation(engine: KernelEngine, repeats: int) -> Iterator[str]:
    """Rows to bytes."""
    for num_inputs in (576, 1536):
        rows = torch.randn(256, num_inputs)
        seconds = best_seconds(lambda rows=rows: engine.quantize(rows), repeats)  # type: ignore[misc]
        yield f"256 rows of {num_inputs:4}  {seconds * 1e6:8.0f} us  {rows.nbytes / seconds / 1e9:5.1f} GB/s"


def steps(isa: str | None, repeats: int) -> Iterator[str]:
    """Whole steps of the bundled model: the products, attention and everything between."""
    torch.set_num_threads(1)
    model = load(None, device="cpu", quantization="int8", isa=isa)
    forward = model.forward_pass(1200, 16)
    rng = np.random.default_rng(0)

    def decodes(count: int, context: int) -> list[RequestRows]:
        each = context // 16 + 1
        tables = [np.arange(1 + i * each, 1 + (i + 1) * each) for i in range(count)]
        return [RequestRows([int(rng.integers(1000))], context, table, 1, 0, False) for table in tables]

    cases = {f"decode of {count:2} at context {context}": decodes(count, context) for count, context in _DECODES}
    for length in (64, 256, 512):
        ids = [int(i) for i in rng.integers(1000, size=length)]
        cases[f"prompt of {length}"] = [RequestRows(ids, 0, np.arange(1, 1 + length // 16), 1, 0, False)]
    for name, rows in cases.items():
        seconds = best_seconds(lambda rows=rows: forward.run(rows), max(3, repeats // 4))  # type: ignore[misc]
        num_tokens = sum(len(row.token_ids) for row in rows)
        yield f"{name:27} {seconds * 1e3:7.1f} ms  {num_tokens / seconds:6.0f} tokens/s a core"


_DECODES = ((1, 128), (8, 128), (32, 128), (64, 128), (1, 1024), (16, 1024))


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", help="avx512, avx2 or portable; default: the best there is")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    engine = KernelEngine(1, args.isa)
    print(f"Instruction set: {engine.isa}")
    for title, lines in (
        ("Matrix products", products(engine, args.repeats)),
        ("Quantisation", quantisation(engine, args.repeats)),
        ("Steps", steps(args.isa, args.repeats)),
    ):
        print(f"\n{title}")
        for line in lines:
            print("  " + line, flush=True)


if __name__ == "__main__":
    main()
