"""The real engine: weights, paged KV tensors, forward pass, sampler. Imported by the composition root alone."""

from headway.executors.torch.checkpoint import Checkpoint, locate_model, open_checkpoint
from headway.executors.torch.executor import TorchExecutor
from headway.executors.torch.loader import LoadedModel, load
from headway.executors.torch.memory import free_memory_bytes
from headway.executors.torch.sampler import TokenLogprobs
from headway.executors.torch.spec import ModelSpec
from headway.executors.torch.step_timing import step_time

__all__ = [
    "Checkpoint",
    "LoadedModel",
    "ModelSpec",
    "TokenLogprobs",
    "TorchExecutor",
    "free_memory_bytes",
    "load",
    "locate_model",
    "open_checkpoint",
    "step_time",
]
