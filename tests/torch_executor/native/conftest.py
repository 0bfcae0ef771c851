"""Models on the kernels; all of this needs a C++ compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from headway.executors.torch import LoadedModel, load
from headway.executors.torch.native import KernelsUnavailableError, load_library
from tests.torch_executor.tiny_models import TinyModel


@pytest.fixture(scope="session", autouse=True)
def _library() -> None:
    try:
        load_library()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def packed(tiny: Callable[[str], TinyModel]) -> Callable[..., LoadedModel]:
    """Tiny models in int8, by name, instruction set and KV type."""

    @cache
    def get(name: str, isa: str | None = None, kv_cache_dtype: str = "auto") -> LoadedModel:
        return load(tiny(name).folder, device="cpu", quantization="int8", isa=isa, kv_cache_dtype=kv_cache_dtype)

    return get


@pytest.fixture(scope="session")
def bundled_int8() -> LoadedModel:
    """SmolLM2-135M-Instruct in int8."""
    return load(None, device="cpu", quantization="int8")
