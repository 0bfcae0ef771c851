"""The composition root: options in, a working engine out. The only importer of `headway.executors.torch`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config import EngineConfig, EngineOptions, ModelFacts, resolve
from headway.core.arrivals import ArrivalSource
from headway.core.clock import Clock
from headway.core.engine import Engine, Listener
from headway.core.policies import blaming
from headway.core.profiles import VictimHandling, profile_for
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.extras import need_extra

if TYPE_CHECKING:
    from headway.executors.base import Executor
    from headway.executors.torch import LoadedModel
    from headway.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """Weights and tokenizer of one model, loaded once; several engines may share it."""

    name: str
    weights: LoadedModel
    tokenizer: Tokenizer

    @property
    def facts(self) -> ModelFacts:
        """What resolving the options needs."""
        return self.weights.facts

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to vocab_size - 1."""
        return self.weights.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a reply, from the weights' configuration and the tokenizer."""
        return self.weights.eos_token_ids | self.tokenizer.eos_token_ids


def load_model(model: str | None, options: EngineOptions) -> Model:
    """Load a Hugging Face folder or a GGUF file; None is the bundled default.

    Raises:
        ModelLoadError: missing, damaged or unsupported files. ConfigError: the extra `torch` is not installed.
    """
    need_extra("torch", "A real model")
    from headway.executors import torch as torch_executor
    from headway.text import Tokenizer

    weights = torch_executor.load(
        model,
        device=options.device,
        dtype=options.dtype,
        num_threads=options.num_threads,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
    )
    path = weights.path
    tokenizer = Tokenizer.from_folder(path) if path.is_dir() else Tokenizer.from_gguf(path, reader=weights.gguf)
    return Model(weights.name, weights, tokenizer)


def build_kernels(*, force: bool = False) -> tuple[Path, str]:
    """Compile the native kernels unless that has been done; their path, and the instruction set they will use.

    Raises:
        ConfigError: they cannot be compiled or loaded here.
    """
    need_extra("torch", "The kernels' engine")
    from headway.executors.torch import native

    try:
        path = native.build(force=force)
        engine = native.KernelEngine(1)
    except native.KernelsUnavailableError as error:
        raise ConfigError(str(error), hint="Install a C++20 compiler: g++ 11 or later, or clang++.") from error
    engine.close()
    return path, engine.isa


def kernel_path() -> tuple[Path, bool]:
    """Where the compiled kernels of this machine are to be, and whether they are there.

    Raises:
        ConfigError: there is no compiler, on which the place depends.
    """
    need_extra("torch", "The kernels' engine")
    from headway.executors.torch import native

    try:
        path = native.cached_library()
    except native.KernelsUnavailableError as error:
        raise ConfigError(str(error), hint="Install a C++20 compiler: g++ 11 or later, or clang++.") from error
    return path, path.is_file()


def build_engine(
    model: Model, options: EngineOptions, source: ArrivalSource, clock: Clock, listeners: Iterable[Listener] = ()
) -> tuple[Engine, EngineConfig]:
    """An engine that runs the real model, and the settings that were resolved for it.

    Raises:
        ConfigError: settings that cannot work together, or a KV cache that does not fit.
    """
    from headway.executors import torch as torch_executor

    _refuse_corrupting(options)
    needs_time = options.max_num_batched_tokens is None or options.speculative_config is not None
    on_cpu = model.weights.device.type == "cpu"
    step_time = torch_executor.step_time(model.weights, options.block_size) if needs_time and on_cpu else None
    free_bytes = torch_executor.free_memory_bytes(model.weights.device)
    config = resolve(options, model.facts, free_bytes, step_time)
    executor = torch_executor.TorchExecutor(
        model.weights,
        num_blocks=config.cache.num_blocks,
        block_size=config.cache.block_size,
        speculation=config.speculation,
        step_time=step_time,
    )
    return assemble(config, executor, source, clock, listeners), config


def _refuse_corrupting(options: EngineOptions) -> None:
    """Some releases leave a preemption victim in the step although its blocks are gone: fine to study, not to run."""
    sound = profile_for(options.engine_version).victim_handling in (VictimHandling.IGNORED, VictimHandling.UNDONE)
    if options.scheduling_policy == "priority" and not sound:
        raise ConfigError(
            f"vLLM {options.engine_version} can compute into blocks it gave away when priority scheduling preempts.",
            hint="A real model needs --engine-version 0.11.1 or later with --scheduling-policy priority.",
        )


def assemble(
    config: EngineConfig,
    executor: Executor,
    source: ArrivalSource,
    clock: Clock,
    listeners: Iterable[Listener] = (),
) -> Engine:
    """An engine on any executor, from resolved settings."""
    depth = 2 if config.scheduler.async_scheduling else 1
    with blaming(config.policy):
        scheduler = Scheduler.of(config, max_in_flight=depth)
    return Engine(scheduler, executor, clock, source, max_in_flight=depth, listeners=listeners)
