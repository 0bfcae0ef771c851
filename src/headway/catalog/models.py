"""Finding a model's facts: by catalogue name, by a local folder or file, or from a config.json on stdin."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from headway.catalog.architecture import ModelArchitecture
from headway.catalog.hf_config import architecture_from_config
from headway.catalog.quantization import named_quantization
from headway.catalog.records import read_record
from headway.catalog.safetensors_header import stored_weight_bytes
from headway.errors import ConfigError

_QUANTIZED_SUFFIXES = {
    "fp8": "fp8",
    "fp8-dynamic": "fp8",
    "fp8-kv": "fp8",
    "awq": "awq",
    "awq-int4": "awq",
    "awq-4bit": "awq",
    "gptq": "gptq",
    "gptq-int4": "gptq",
    "int4": "w4a16",
    "w4a16": "w4a16",
    "quantized.w4a16": "w4a16",
    "quantized.w8a8": "int8",
    "w8a8": "int8",
    "int8": "int8",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "bnb-4bit": "bitsandbytes",
}
_WEIGHTS = (".safetensors", ".safetensors.index.json")
_SAME_SHAPE_SUFFIXES = ("instruct", "chat", "it", "hf", "base", "dynamic")


def list_models() -> list[str]:
    """Ids of all models in the catalogue, sorted."""
    return sorted(_records())


def find_model(name: str) -> ModelArchitecture:
    """The facts of a model.

    Args:
        name: a catalogue id (`meta-llama/Llama-3.3-70B-Instruct`), its last part or a unique start of it in any case
            (`llama-3.3-70b`), an id that differs only by a suffix such as -Instruct, -FP8 or -AWQ (said in the
            result's notes), a folder with config.json or a safetensors file in it (whose headers then tell the weights'
            size), a config.json file, or `-` for a config.json on stdin.

    Raises:
        ConfigError: unknown (with the nearest names), ambiguous, or a file that cannot be read.
    """
    if name == "-":
        return _from_text(sys.stdin.read(), "stdin", "stdin")
    path = Path(name).expanduser()
    if path.exists() or name.endswith((".json", *_WEIGHTS)):
        return _from_path(path)
    found = _find_id(name)
    if found is not None:
        return read_record(_records()[found])
    return _variant(name)


def _from_path(path: Path) -> ModelArchitecture:
    of_weights = path.name.endswith(_WEIGHTS)
    folder = path if path.is_dir() else path.parent
    config_path = folder / "config.json" if path.is_dir() or of_weights else path
    if of_weights and not path.is_file():
        raise ConfigError(f"Cannot read {path}: there is no such file.")
    if of_weights and not config_path.is_file():
        raise ConfigError(
            f"There is no config.json beside {path}.",
            hint="A safetensors header tells sizes, not heads; put the model's config.json into its folder.",
        )
    name = folder.resolve().name if of_weights else path.resolve().name
    model = _from_text(_read(config_path), name, str(config_path), beside=folder)
    if not path.is_dir() and not of_weights:
        return model
    stored = stored_weight_bytes(folder, model, is_float32=_is_float32(config_path))
    return model if stored is None else replace(model, stored_bytes=stored)


def _is_float32(config_path: Path) -> bool:
    config = json.loads(_read(config_path))
    settings = (config, *(part for part in config.values() if isinstance(part, dict)))
    named = [part.get("torch_dtype") or part.get("dtype") for part in settings]
    return next((name for name in named if name), None) in ("float32", "torch.float32")


def _from_text(text: str, model_id: str, source: str, *, beside: Path | None = None) -> ModelArchitecture:
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{source} is not JSON: line {error.lineno}: {error.msg}.") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{source} is not a JSON object.", hint="A model's config.json is wanted.")
    extra = beside / "hf_quant_config.json" if beside is not None else None
    if extra is not None and extra.is_file() and not config.get("quantization_config"):
        config["quantization_config"] = json.loads(_read(extra)).get("quantization")
    named = config.get("_name_or_path")
    return architecture_from_config(config, model_id=str(named or model_id), source=source)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"Cannot read {path}: {error}.") from None


def _find_id(name: str) -> str | None:
    """A catalogue id for an exact id, alias or last part; several ids of the same shape count as one."""
    wanted = _normal(name)
    records = _records()
    exact = [key for key in records if _normal(key) == wanted or wanted in _aliases(records[key])]
    if exact:
        return exact[0]
    if "/" in name:
        return None
    tails = [key for key in records if _normal(key.split("/")[-1]) == wanted]
    found = _only(tails, name)
    if found is None:
        starts = [key for key in records if _starts_with(_normal(key.split("/")[-1]), wanted)]
        found = _only(starts, name)
    return found


def _starts_with(tail: str, wanted: str) -> bool:
    """`tail` goes on after `wanted` only with suffixes that do not change the shape or the weights' format."""
    prefixes = (wanted, f"meta-{wanted}")
    for prefix in prefixes:
        if tail.startswith(f"{prefix}-"):
            return all(
                part in _SAME_SHAPE_SUFFIXES or re.fullmatch(r"v\d+(\.\d+)*|\d{4}", part)
                for part in tail.removeprefix(f"{prefix}-").split("-")
            )
    return tail == f"meta-{wanted}"


def _only(keys: list[str], name: str) -> str | None:
    if not keys:
        return None
    shapes = {_shape(key) for key in keys}
    if len(shapes) > 1:
        raise ConfigError(f"{name!r} could be {', '.join(sorted(keys)[:5])}.", hint="Give the full id.")
    return sorted(keys, key=lambda key: (len(key), key))[0]


@cache
def _shape(key: str) -> ModelArchitecture:
    return replace(read_record(_records()[key]), id="", source="", notes=(), max_model_len=None, architecture=None)


def _variant(name: str) -> ModelArchitecture:
    """A model that differs from one in the catalogue by suffixes that keep the shape."""
    owner, _, tail = name.rpartition("/")
    rest, quantization = tail, None
    while True:
        shorter, method = _strip_suffix(rest)
        if shorter is None:
            raise _unknown(name)
        rest, quantization = shorter, quantization or method
        found = _find_id(f"{owner}/{rest}") if owner else None
        found = found or _find_id(rest)
        if found is not None:
            break
    base = read_record(_records()[found])
    note = f"Facts of {found}, taken to have the same shape."
    if quantization is not None and base.quantization is None:
        note = f"Facts of {found}, taken to have the same shape; weights as {quantization} by the name."
        base = replace(base, quantization=named_quantization(quantization))
    return replace(base, id=name, notes=(*base.notes, note))


def _strip_suffix(tail: str) -> tuple[str | None, str | None]:
    """Drop one known suffix; returns the rest (None: there was none) and the weight format it named."""
    lowered = tail.lower()
    for suffix in sorted((*_QUANTIZED_SUFFIXES, *_SAME_SHAPE_SUFFIXES), key=len, reverse=True):
        for separator in "-_ ":
            if lowered.endswith(separator + suffix):
                return tail[: -len(suffix) - 1], _QUANTIZED_SUFFIXES.get(suffix)
    return None, None


def _unknown(name: str) -> ConfigError:
    near = nearest(name, _records())
    hint = f"Nearest: {', '.join(near)}." if near else "headway plan --list-models shows the catalogue."
    return ConfigError(f"Model {name!r} is not in the catalogue.", hint=f"{hint} Or give its config.json.")


def nearest(name: str, ids: Iterable[str]) -> list[str]:
    """Up to three names of the catalogue that look like `name`."""
    tails = {_normal(key.split("/")[-1]): key for key in ids}
    close = get_close_matches(_normal(name.split("/")[-1]), tails, n=3, cutoff=0.5)
    return [tails[tail] for tail in close]


def _normal(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _aliases(record: Mapping[str, Any]) -> set[str]:
    return {_normal(alias) for alias in record.get("aliases", ())}


@cache
def _records() -> dict[str, dict[str, Any]]:
    text = resources.files("headway.catalog").joinpath("models.json").read_text(encoding="utf-8")
    return {record["id"]: record for record in json.loads(text)}
