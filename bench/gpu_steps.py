"""Steps of a dense model on one GPU, measured with PyTorch's own kernels, beside the roofline's prices.

    python bench/gpu_steps.py measure --json steps.json       # on the GPU; needs PyTorch only
    python bench/gpu_steps.py compare steps.json --gpu h200   # anywhere

What is measured is the device's time: matrix products (cuBLAS), norms and gates (fused by `torch.compile`), attention
(the fastest of PyTorch's), each replayed as a CUDA graph, with random weights of the model's shapes, every layer with
its own, so that nothing is found in a cache. There is no engine and no host time in it. FP8 is a scale a tensor of
weights and one a row of activations, which are quantised before every product, as vLLM does for such checkpoints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 8192)
DECODES = ((1, 1024), (1, 16384), (8, 1024), (8, 16384), (64, 1024), (64, 8192), (256, 1024), (256, 4096))
"""Sequences, and the context of each."""
CHUNKS = ((512, 0), (2048, 0), (8192, 0), (2048, 6144), (512, 16384))
"""Tokens computed, and tokens before them."""
_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Dimensions:
    """The shapes of a dense model. `model` is its name in the catalogue."""

    model: str
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int


MODELS = (
    Dimensions("llama-3.1-8b", 32, 4096, 14336, 32, 8, 128, 128256),
    Dimensions("llama-3.3-70b", 80, 8192, 28672, 64, 8, 128, 128256),
)


def main() -> None:
    """Measure, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure")
    measure.add_argument("--json", type=Path, required=True)
    measure.add_argument("--device", default="cuda")
    measure.add_argument("--layers", type=int, help="of each model, for a quick look")
    compare = commands.add_parser("compare")
    compare.add_argument("file", type=Path)
    compare.add_argument("--gpu", required=True)
    args = parser.parse_args()
    if args.command == "measure":
        _measure(args.json, args.device, args.layers)
    else:
        print(_compare(json.loads(args.file.read_text()), args.gpu))


# ------------------------------------------------------------------ on the GPU


def _measure(path: Path, device: str, num_layers: int | None) -> None:
    import torch

    torch.manual_seed(0)
    found: dict[str, Any] = {"torch": torch.__version__, "device": device, "steps": []}
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    found["ceilings"] = _ceilings(device)
    print(found, flush=True)
    for dimensions in MODELS:
        for quantization in (None, "fp8"):
            if quantization is None and dimensions.num_layers > 40:
                continue  # its weights alone fill the card
            steps = _Steps(dimensions, quantization, device, num_layers or dimensions.num_layers)
            for step in steps.all():
                print(step, flush=True)
                found["steps"].append(step)
                path.write_text(json.dumps(found, indent=1))
            del steps
            if device == "cuda":
                torch.cuda.empty_cache()


def _ceilings(device: str) -> dict[str, float]:
    import torch

    size = 8192 if device == "cuda" else 256
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_s = _seconds(lambda: left @ right, device)
    source = torch.randn((2 << 30) // 4 if device == "cuda" else 1 << 16, device=device)
    target = torch.empty_like(source)
    copy_s = _seconds(lambda: target.copy_(source), device)
    return {"bf16_tflops": 2 * size**3 / product_s / 1e12, "copy_gbps": 2 * source.nbytes / copy_s / 1e9}


def _seconds(work: Callable[[], Any], device: str, repeats: int = 7) -> float:
    """Median device seconds of some work, replayed as a CUDA graph after a warm-up."""
    import time

    import torch

    if device != "cuda":
        started_at = time.perf_counter()
        work()
        return time.perf_counter() - started_at
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times: list[float] = []
    for _ in range(repeats):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        times.append(before.elapsed_time(after) / 1e3)
    return statistics.median(times)


class _Steps:
    """A model's random weights, and the parts of its steps."""

    def __init__(self, dimensions: Dimensions, quantization: str | None, device: str, num_layers: int) -> None:
        import torch

        self._torch, self._device, self._size, self._quantization = torch, device, dimensions, quantization
        self._num_layers = num_layers
        size = dimensions
        heads, kv = size.num_heads * size.head_dim, size.num_kv_heads * size.head_dim
        self._shapes = {
            "qkv": (heads + 2 * kv, size.hidden),
            "output": (size.hidden, heads),
            "up": (2 * size.intermediate, size.hidden),
            "down": (size.hidden, size.intermediate),
        }
        self._layers = [{name: self._weight(*shape) for name, shape in self._shapes.items()} for _ in range(num_layers)]
        self._head = torch.randn(size.vocab, size.hidden, device=device, dtype=torch.bfloat16).mul_(0.02)
        self._norm_weight = torch.ones(size.hidden, device=device, dtype=torch.bfloat16)
        compiled = torch.compile(dynamic=True) if device == "cuda" else lambda function: function
        self._add_norm, self._gate, self._narrow = compiled(_add_norm), compiled(_gate), compiled(_narrow)

    def all(self) -> Iterator[dict[str, Any]]:
        """Every part, each of all layers together."""
        who = {"model": self._size.model, "quantization": self._quantization}
        scale = self._size.num_layers / self._num_layers
        for num_rows in ROWS:
            yield who | {"part": "layers", "num_rows": num_rows, "seconds": scale * self._rows_s(num_rows)}
        for num_rows in (1, 64, 256):
            yield who | {"part": "head", "num_rows": num_rows, "seconds": self._head_s(num_rows)}
        if self._quantization is not None and self._size is MODELS[0]:
            return  # attention is the same as without
        for num_sequences, context in DECODES:
            name, seconds = self._attention_s(num_sequences, 1, context)
            where = {"num_sequences": num_sequences, "context": context, "kernel": name}
            yield who | {"part": "decode", **where, "seconds": self._size.num_layers * seconds}
        for num_new, past in CHUNKS:
            name, seconds = self._attention_s(1, num_new, past + num_new)
            where = {"num_tokens": num_new, "num_past_tokens": past, "kernel": name}
            yield who | {"part": "chunk", **where, "seconds": self._size.num_layers * seconds}

    def _weight(self, num_out: int, num_in: int) -> Any:
        made = self._torch.randn(num_out, num_in, device=self._device, dtype=self._torch.bfloat16).mul_(0.02)
        return made if self._quantization is None else (made * 256).to(self._torch.float8_e4m3fn)

    def _product(self, rows: Any, weight: Any) -> Any:
        if self._quantization is None:
            return rows @ weight.t()
        narrow, scale = self._narrow(rows)
        if self._device != "cuda":
            return ((narrow.float() * scale) @ weight.float().t()).to(rows.dtype)
        ones = self._torch.full((1, weight.shape[0]), 1 / 256, device=self._device)
        return self._torch._scaled_mm(
            narrow, weight.t(), scale_a=scale, scale_b=ones, out_dtype=self._torch.bfloat16, use_fast_accum=True
        )

    def _rows_s(self, num_rows: int) -> float:
        size = self._size
        rows = self._torch.randn(num_rows, size.hidden, device=self._device, dtype=self._torch.bfloat16)

        def step() -> Any:
            residual, change = rows, rows
            for layer in self._layers:
                residual, normed = self._add_norm(residual, change, self._norm_weight)
                mixed = self._product(normed, layer["qkv"])[:, : size.num_heads * size.head_dim].contiguous()
                change = self._product(mixed, layer["output"])
                residual, normed = self._add_norm(residual, change, self._norm_weight)
                change = self._product(self._gate(self._product(normed, layer["up"])), layer["down"])
            return residual + change

        return _seconds(step, self._device)

    def _head_s(self, num_rows: int) -> float:
        rows = self._torch.randn(num_rows, self._size.hidden, device=self._device, dtype=self._torch.bfloat16)
        return _seconds(lambda: rows @ self._head.t(), self._device)

    def _attention_s(self, num_sequences: int, num_new: int, context: int) -> tuple[str, float]:
        """The fastest of PyTorch's kernels for one layer, and its seconds: a mean over enough layers to leave L2."""
        import functools

        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right
        from torch.nn.functional import scaled_dot_product_attention

        size, torch = self._size, self._torch
        kv_bytes = 2 * 2 * num_sequences * context * size.num_kv_heads * size.head_dim
        num_layers = max(1, min(size.num_layers, _CACHE_BYTES // kv_bytes)) if self._device == "cuda" else 1
        make = functools.partial(torch.randn, device=self._device, dtype=torch.bfloat16)
        query = make(num_sequences, size.num_heads, num_new, size.head_dim)
        caches = [
            [make(num_sequences, size.num_kv_heads, context, size.head_dim) for _ in range(2)]
            for _ in range(num_layers)
        ]
        mask = causal_lower_right(num_new, context) if 1 < num_new < context else None

        def attend(backend: SDPBackend, folded: bool) -> None:
            asked = query
            if folded:  # the queries of a KV head as rows of one sequence: each key is read once
                asked = query.view(num_sequences, size.num_kv_heads, -1, size.head_dim)
            with sdpa_kernel(backend):
                for key, value in caches:
                    scaled_dot_product_attention(
                        asked, key, value, attn_mask=mask, is_causal=num_new == context, enable_gqa=not folded
                    )

        best = ("none", float("inf"))
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            for folded in (False, True) if num_new == 1 else (False,):
                try:
                    seconds = _seconds(functools.partial(attend, backend, folded), self._device) / num_layers
                except RuntimeError as error:
                    print(f"{backend.name}: {str(error).splitlines()[0]}", file=sys.stderr)
                    continue
                if seconds < best[1]:
                    best = (backend.name + (" folded" if folded else ""), seconds)
        return best


def _add_norm(residual: Any, change: Any, weight: Any) -> tuple[Any, Any]:
    total = residual + change
    wide = total.float()
    return total, (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(total.dtype) * weight


def _gate(both: Any) -> Any:
    gate, up = both.chunk(2, -1)
    wide = gate.float()
    return (wide * wide.sigmoid()).to(up.dtype) * up


def _narrow(rows: Any) -> tuple[Any, Any]:
    import torch

    wide = rows.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (wide / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


# ------------------------------------------------------------------ beside the roofline


def _compare(found: dict[str, Any], gpu: str) -> str:
    from headway.catalog.accelerators import find_accelerator
    from headway.catalog.models import find_model
    from headway.executors.simulated.oracle import Chunk, StepShape
    from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup

    lines = ["| model | part | measured ms | roofline ms | roofline / measured |", "|---|---|--:|--:|--:|"]
    ratios: dict[str, list[float]] = {}
    names: tuple[str, ...]
    for step in found["steps"]:
        oracle = RooflineOracle(
            RooflineSetup(find_model(step["model"]), find_accelerator(gpu), quantization=step["quantization"])
        )
        match step["part"]:
            case "layers":
                where, names = f"{step['num_rows']} rows", ("linear", "passes", "layers")
                shape = StepShape((), step["num_rows"], step["num_rows"], step["num_rows"], 0)
            case "head":
                where, names = f"{step['num_rows']} rows", ("head",)
                shape = StepShape((), step["num_rows"], step["num_rows"], step["num_rows"], step["num_rows"])
            case "decode":
                where, names = f"{step['num_sequences']} × {step['context']}", ("attention_decode",)
                count = step["num_sequences"]
                shape = StepShape((), count, count, count * step["context"], 0)
            case _:
                where, names = f"{step['num_tokens']} after {step['num_past_tokens']}", ("attention_prefill",)
                shape = StepShape((Chunk(step["num_tokens"], step["num_past_tokens"]),))
        predicted = sum(part.seconds for part in oracle.explain(shape) if part.name in names)
        ratio = predicted / step["seconds"]
        title = f"{step['model']} {step['quantization'] or 'bf16'}"
        ratios.setdefault(f"{title} {step['part']}", []).append(ratio)
        values = f"{1e3 * step['seconds']:.3f} | {1e3 * predicted:.3f} | {ratio:.2f}"
        lines.append(f"| {title} | {step['part']} {where} | {values} |")
    summary = [f"{name}: median {statistics.median(values):.2f}, {_range(values)}" for name, values in ratios.items()]
    return "\n".join([*lines, "", json.dumps(found["ceilings"]), *summary])


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


if __name__ == "__main__":
    main()
