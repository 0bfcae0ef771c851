"""Each kernel by itself: how fast, and how close to what the machine can do.

    python -m bench.kernels [--only NAME] [--isa avx512] [--repeats 20]

Times are of the processor, on one thread, so that other programs disturb them little; the best of --repeats. Only what
registers alone can do is timed by the clock, and wants an idle machine. Shapes are those of SmolLM2-135M. The kernels,
as csrc/kernels.h declares them:

    quantize          rows of floats to bytes, a scale for every 32; GB/s are of the floats
    norm_quantize     the same of their RMS norm times its weight
    multiply          rows of bytes times packed weights, without making the bytes: into a matrix (store), onto one
                      (add), through SiLU (gate), or to the best column alone (head); GB/s are of the weights
    rotate_and_store  positions into queries and keys, keys and values into the cache, of a row
    attend            queries over keys and values in blocks of 16; GB/s are of keys and values
    steps             all of them as the engine runs them: a whole step of the model
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from bench.native.library import ADD, GATE, HEAD, STORE, Heads, SingleKernels, measure_ceilings
from headway.executors.torch import load
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.native import KernelEngine
from headway.executors.torch.native.library import GROUP

_SHAPES = (
    *((960, 576, "qkv", STORE), (576, 576, "output", ADD), (3072, 576, "gate, up", GATE)),
    *((576, 1536, "down", ADD), (49152, 576, "head", HEAD)),
)
"""Outputs, inputs, and what becomes of the product."""
_ROWS = (1, 6, 24, 96)
_HEADS = Heads(num_heads=9, num_kv_heads=3, head_dim=64)
_ATTENDED = ((1, 128, 1), (1, 1024, 1), (32, 256, 1), (1, 256, 256), (1, 2048, 256))
"""Requests, tokens of each, and how many of the last of them are queries."""
_DECODES = ((1, 128), (8, 128), (32, 128), (64, 128), (1, 1024), (16, 1024))


def quantization(kernels: SingleKernels, engine: KernelEngine) -> Iterator[str]:
    """Rows to bytes, of a norm and as they are."""
    for num_inputs in (576, 1536):
        rows = torch.randn(24, num_inputs)
        for name, norm in (("quantize", None), ("norm_quantize", torch.ones(num_inputs))):
            seconds = kernels.quantize(rows, norm)
            yield f"{name:16} 24 rows of {num_inputs:4} {_us(seconds)} {rows.nbytes / seconds / 1e9:5.1f} GB/s"


def products(kernels: SingleKernels, engine: KernelEngine) -> Iterator[str]:
    """Weights of 4 bits in the layers, of 8 in the head."""
    peak = measure_ceilings(1).dots
    for num_outputs, num_inputs, name, output in _SHAPES:
        exact = torch.randn(num_outputs, num_inputs)
        packed = engine.pack(exact if output == HEAD else four_bit(exact), gated=output == GATE)
        for num_rows in _ROWS:
            seconds = kernels.multiply(torch.randn(num_rows, num_inputs), packed, output)
            rate = 2 * num_rows * exact.numel() / seconds
            yield (
                f"{name:9} {num_rows:4} rows {_us(seconds)} {rate / 1e9:5.0f} Gop/s, {100 * rate / peak:3.0f} % of "
                f"registers' {peak / 1e9:.0f} {packed.panels.nbytes / seconds / 1e9:5.1f} GB/s"
            )


def four_bit(weight: torch.Tensor) -> torch.Tensor:
    """The same on sixteen levels for every 32 inputs, as 4-bit files have them."""
    groups = weight.view(len(weight), -1, GROUP)
    least = groups.amin(-1, keepdim=True).half().float()
    scale = ((groups.amax(-1, keepdim=True) - least) / 15).half().float()
    return (least + scale * ((groups - least) / scale).round().clamp(0, 15)).view_as(weight)


def rotations(kernels: SingleKernels, engine: KernelEngine) -> Iterator[str]:
    """One layer of one row is what the time is of."""
    for num_rows in (1, 64):
        seconds = kernels.rotate_and_store(_HEADS, num_rows) / num_rows
        yield f"of {num_rows:2} rows {_us(seconds)} a row"


def attention(kernels: SingleKernels, engine: KernelEngine) -> Iterator[str]:
    """One layer, keys and values in half precision."""
    for num_requests, num_tokens, num_queries in _ATTENDED:
        seconds = kernels.attend(_HEADS, num_requests, num_tokens, num_queries)
        keys_seen = num_requests * num_queries * (2 * num_tokens - num_queries + 1) // 2
        rate = 4 * keys_seen * _HEADS.num_heads * _HEADS.head_dim / seconds / 1e9
        kv_bytes = num_requests * num_tokens * 2 * _HEADS.num_kv_heads * _HEADS.head_dim * 2
        yield (
            f"{num_requests:2} requests of {num_tokens:4} tokens, last {num_queries:3} {_us(seconds)} "
            f"{rate:5.0f} Gop/s {kv_bytes / seconds / 1e9:5.1f} GB/s"
        )


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
        seconds = _best_seconds(lambda rows=rows: forward.run(rows), max(3, repeats // 4))  # type: ignore[misc]
        num_tokens = sum(len(row.token_ids) for row in rows)
        yield f"{name:27} {seconds * 1e3:7.1f} ms  {num_tokens / seconds:6.0f} tokens/s a core"


def _best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The least processor time of a few runs."""
    times = []
    for _ in range(repeats):
        started_at = time.thread_time()
        work()
        times.append(time.thread_time() - started_at)
    return min(times)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:9.1f} us"


_SINGLE = {
    "quantize, norm_quantize": quantization,
    "multiply": products,
    "rotate_and_store": rotations,
    "attend": attention,
}


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="kernels with this in their name, or steps")
    parser.add_argument("--isa", help="avx512, avx2 or portable; default: the best there is")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    engine = KernelEngine(1, args.isa)
    kernels = SingleKernels(engine.isa, args.repeats)
    print(f"Instruction set: {engine.isa}")
    parts = {name: part(kernels, engine) for name, part in _SINGLE.items()}
    for title, lines in {**parts, "steps": steps(args.isa, args.repeats)}.items():
        if args.only not in title:
            continue
        print(f"\n{title}")
        for line in lines:
            print("  " + line, flush=True)


if __name__ == "__main__":
    main()
