"""The int8 path: a small kernel library in C++ (`csrc/`), compiled on this machine, and what drives it."""

from headway.executors.torch.native.compilation import KernelsUnavailableError, build, cached_library
from headway.executors.torch.native.library import KernelEngine, load_library

__all__ = ["KernelEngine", "KernelsUnavailableError", "build", "cached_library", "load_library"]
