"""The benchmarks' own C++: ceilings of the machine, and the kernels timed one by one or within steps.

It is compiled beside the kernels, for the processor at hand, and is no part of the package.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_long, c_void_p
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from headway.executors.torch.native import build, load_library
from headway.executors.torch.native.compilation import SOURCES, find_compiler
from headway.executors.torch.native.library import MatrixStruct, PackedWeight
from headway.executors.torch.native.memory import huge_zeros

HERE = Path(__file__).parent
PARTS = ("quantize", "norm_quantize", "qkv", "output, down", "gate, up", "head", "rotate_and_store", "attend")
"""What the kernels of a step are told apart into: `Part` of timed_kernels.cpp."""
STORE, ADD, GATE, HEAD = range(4)
"""What becomes of a product: `Output` of csrc/kernels.h."""
_DOTS = 16 * 4 * 2
_FMAS = 16 * 2
"""Operations of one vector of sums: multiplications and additions."""


@cache
def compile_library() -> Path:
    """Compile what stands in for the kernels' library, and is linked with it. Returns where it is."""
    kernels = build()
    sources = sorted(HERE.glob("*.cpp"))
    digest = blake2b(str(kernels).encode(), digest_size=8)
    for source in sources:
        digest.update(source.read_bytes())
    target = kernels.parent / f"bench-{digest.hexdigest()}.so"
    if not target.is_file():
        beside = target.with_suffix(f".{os.getpid()}")
        flags = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", f"-I{SOURCES}")
        subprocess.run(
            [find_compiler(), *flags, *map(str, sources), str(kernels), "-o", str(beside)], check=True, text=True
        )
        os.replace(beside, target)
    return target


@cache
def bench_library() -> ctypes.CDLL:
    """The library, its functions declared."""
    library = ctypes.CDLL(str(compile_library()))
    signatures = {
        "bench_sums": (c_int, ()),
        "bench_dots": (c_double, (c_int, c_long)),
        "bench_fmas": (c_double, (c_int, c_long)),
        "bench_read": (c_double, (c_void_p, c_long, c_int, c_int)),
        "bench_take_times": (None, (POINTER(c_int64), POINTER(c_int64))),
        "bench_quantize": (c_double, (c_char_p, c_void_p, c_int, c_int, c_void_p, c_int)),
        "bench_multiply": (c_double, (c_char_p, c_void_p, c_int, POINTER(MatrixStruct), c_int, c_int)),
        "bench_rotate_and_store": (c_double, (c_char_p, *(c_int,) * 6)),
        "bench_attend": (c_double, (c_char_p, *(c_int,) * 8)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


# ---------------------------------------------------------------- ceilings


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What all threads together can do at best."""

    dots: float
    """Operations a second on bytes, two for each product; on registers alone."""
    fmas: float
    """The same on floats."""
    memory: float
    """Bytes read a second from a stream much larger than the last cache."""
    cache: float
    """Bytes read a second from a stream of half the last cache."""


def measure_ceilings(num_threads: int, *, repeats: int = 5) -> Ceilings:
    """The best of a few runs of some hundredths of a second each."""
    library, rounds = bench_library(), 3_000_000
    num_sums = library.bench_sums() * num_threads * rounds
    dots = num_sums * _DOTS / min(library.bench_dots(num_threads, rounds) for _ in range(repeats))
    fmas = num_sums * _FMAS / min(library.bench_fmas(num_threads, rounds) for _ in range(repeats))
    size = last_cache_bytes()
    stream = huge_zeros(max(8 * size, 256 << 20))
    stream.fill_(1)
    return Ceilings(
        dots,
        fmas,
        _read_rate(stream, num_threads, 2, repeats),
        _read_rate(stream[: size // 2], num_threads, 40, repeats),
    )


def _read_rate(stream: Tensor, num_threads: int, num_passes: int, repeats: int) -> float:
    num_floats = len(stream) // 4
    arguments = (stream.data_ptr(), num_floats, num_threads, num_passes)
    seconds = float(min(bench_library().bench_read(*arguments) for _ in range(repeats)))
    return 4 * num_floats * num_passes / seconds


def last_cache_bytes() -> int:
    """Size of the largest cache of the first processor; 32 MiB where the system does not tell."""
    found = [32 << 20]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text().strip()
        found.append(int(text[:-1]) << {"K": 10, "M": 20}[text[-1]])
    return max(found[1:], default=found[0])


# ---------------------------------------------------------------- kernels


@dataclass(frozen=True, slots=True)
class Heads:
    """Attention of one layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    is_half: bool = True


class SingleKernels:
    """Processor seconds of one call of each kernel on one thread, the best of `repeats`.

    Args:
        isa: instruction set; one that this processor has.
    """

    def __init__(self, isa: str, repeats: int) -> None:
        self._isa = isa.encode()
        self._repeats = repeats
        self._library = bench_library()

    def quantize(self, rows: Tensor, norm: Tensor | None = None) -> float:
        """Rows to bytes; with `norm`, of their RMS norm times it."""
        weight = None if norm is None else norm.data_ptr()
        return float(self._library.bench_quantize(self._isa, rows.data_ptr(), *rows.shape, weight, self._repeats))

    def multiply(self, rows: Tensor, weight: PackedWeight, output: int) -> float:
        """Rows, already bytes, times a matrix."""
        matrix = weight.struct()
        arguments = (rows.data_ptr(), len(rows), byref(matrix), output, self._repeats)
        return float(self._library.bench_multiply(self._isa, *arguments))

    def rotate_and_store(self, heads: Heads, num_rows: int) -> float:
        """Queries and keys turn, and keys and values go into the cache."""
        shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.is_half)
        return float(self._library.bench_rotate_and_store(self._isa, *shape, num_rows, self._repeats))

    def attend(self, heads: Heads, num_requests: int, num_tokens: int, num_queries: int) -> float:
        """The last queries of each request look at all its tokens before."""
        shape = (heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.is_half)
        sizes = (num_requests, num_tokens, num_queries)
        return float(self._library.bench_attend(self._isa, *shape, *sizes, self._repeats))


def take_times() -> dict[str, float]:
    """Seconds in each kind of kernel since the last call, over all threads of engines whose kernels are timed."""
    nanoseconds, calls = (c_int64 * len(PARTS))(), (c_int64 * len(PARTS))()
    bench_library().bench_take_times(nanoseconds, calls)
    return {name: value / 1e9 for name, value in zip(PARTS, nanoseconds, strict=True)}


@contextmanager
def timed_kernels() -> Iterator[None]:
    """Models loaded within have kernels that are timed (see `take_times`); those loaded before or after, plain ones."""
    given = os.environ.get("HEADWAY_KERNELS")
    os.environ["HEADWAY_KERNELS"] = str(compile_library())
    load_library.cache_clear()
    try:
        yield
    finally:
        del os.environ["HEADWAY_KERNELS"]
        if given is not None:
            os.environ["HEADWAY_KERNELS"] = given
        load_library.cache_clear()
