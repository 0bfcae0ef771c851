"""Reads a deployment file of any form, within bounds, without running anything."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headway.catalog.flags import all_flags
from headway.deployment.batch import read_batch
from headway.deployment.compose import read_compose, read_env_file
from headway.deployment.dockerfile import read_dockerfile
from headway.deployment.helm import is_production_stack, looks_like_engine_args, read_values
from headway.deployment.invocation import Invocation, Lint
from headway.deployment.kubernetes import read_containers
from headway.deployment.logs import read_log
from headway.deployment.makefile import read_makefile
from headway.deployment.mapping import config_file, engine_args
from headway.deployment.powershell import read_powershell
from headway.deployment.python_source import read_python
from headway.deployment.ray_serve import is_ray, read_ray
from headway.deployment.shell_reader import read_shell
from headway.deployment.systemd import read_unit
from headway.deployment.yaml_text import load_documents
from headway.errors import InputError

MAX_BYTES = 4_000_000
MAX_LOG_BYTES = 64_000_000
_SHELL_SUFFIXES = frozenset((".sh", ".bash", ".zsh", ".txt", ".cmdline", ".slurm", ".sbatch", ""))

_COMMAND = "command.sh"
"""The name of what is no file but a command line: it is read as a shell does."""


def read_file(path: Path) -> list[Invocation]:
    """Every vLLM start that a file describes, in the file's order.

    Raises:
        InputError: the file cannot be read, is binary, too large, or holds no vLLM start.
    """
    text = _load(path)
    env = path.with_name(".env")
    variables = read_env_file(_load(env)) if _is_compose_name(path) and env.is_file() else {}
    return read_text(text, path.name, variables=variables, folder=path.parent)


def read_deployment(place: str) -> list[Invocation]:
    """Every vLLM start of a file, or of a command line such as `"vllm serve MODEL --max-num-seqs 64"`.

    Words that are no file are a command line where there are several, or one begins with dashes.

    Raises:
        InputError: as `read_file`.
    """
    is_words = len(place.split()) > 1 or (place.startswith("-") and place != "-")
    with contextlib.suppress(OSError, ValueError):
        is_words = is_words and not Path(place).is_file()
    if not is_words:
        return read_file(Path(place))
    words = f"vllm serve {place}" if place.lstrip().startswith("-") else place
    if not _read(words, _COMMAND, {}):
        raise InputError(
            f"{place[:80]!r} is no file, and starts no vLLM.",
            hint="Give a file, or a command as it is typed, in quotes.",
        )
    return read_text(words, _COMMAND)


def read_text(
    text: str, name: str = "", *, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> list[Invocation]:
    """The same from a text; `name` is the file's name, which decides the form where it says so.

    Raises:
        InputError: as `read_file`.
    """
    found = _read(text, name, variables or {})
    if not found:
        raise InputError(
            f"No start of vLLM was found in {name or 'the text'}.",
            hint="Understood: shell, docker, compose, Kubernetes, KServe, Helm values, Ray Serve, systemd, Makefile, "
            "Dockerfile, PowerShell, batch files, Python, vLLM's config YAML, JSON or TOML of engine arguments, and "
            "vLLM's logs and metrics.",
        )
    if folder is not None:
        for invocation in found:
            _attach_config(invocation, folder)
    for invocation in found:
        invocation.lints += _commented_flags(text, found)
        if invocation.source == "vLLM config file":
            message = (
                "Pass the file as `--config FILE`: `--config=FILE` is not read, and vLLM serves its default model."
            )
            invocation.lint("config-with-equals", "note", message, 0, "config")
    return found


_COMMENTED = re.compile(r"^\s*(?:#|//|REM\b|<#)[\s#'\"-]*(--[a-z][\w-]+)(?:[ =]+([^\s\\`'\"]+))?", re.MULTILINE)


def _commented_flags(text: str, found: list[Invocation]) -> list[Lint]:
    """Flags of vLLM in comments are not read; said once, on the last start before or the first after."""
    names = {flag.option for flag in all_flags().values()}
    lints: list[Lint] = []
    for match in _COMMENTED.finditer(text):
        option = match.group(1).replace("_", "-")
        if option in names and option != "--config" and len(lints) < 50:
            line = text.count("\n", 0, match.start(1)) + 1
            value = f" {match.group(2)}" if match.group(2) else ""
            message = f"Line {line} is a comment: {match.group(1)}{value} is not read."
            lints.append(Lint("commented-flag", "note", message, line, (option[2:].replace("-", "_"),)))
    return lints if len(found) == 1 else []


def _load(path: Path) -> str:
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError(f"{path} is not a file.")
        limit = MAX_LOG_BYTES if path.suffix in (".log", ".prom") else MAX_BYTES
        if size > limit:
            raise InputError(f"{path} has {size} bytes; at most {limit} are read.")
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror or error}.") from None
    except ValueError:  # a null character
        raise InputError(f"{str(path)!r} is no path.") from None
    return decode(raw, str(path))


def decode(raw: bytes, name: str) -> str:
    """Text from bytes: UTF-8, or UTF-16 with its mark.

    Raises:
        InputError: binary content.
    """
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not text: {error.reason} at byte {error.start}.") from None
    if "\0" in text:
        raise InputError(f"{name} is not text: it contains a NUL byte at position {text.index(chr(0))}.")
    return text


def _read(text: str, name: str, variables: Mapping[str, str]) -> list[Invocation]:
    path = Path(name.lower())
    suffix = path.suffix
    if path.name.startswith(("makefile", "gnumakefile")) or suffix == ".mk":
        return read_makefile(text)
    if suffix in (".yaml", ".yml"):
        return _yaml(text, name, variables)
    if suffix == ".json":
        return _json(text)
    if suffix == ".toml":
        return _toml(text)
    if suffix == ".py":
        return read_python(text)
    if suffix in (".ps1", ".psm1"):
        return read_powershell(text)
    if path.name.startswith(("dockerfile", "containerfile")) or suffix == ".dockerfile":
        return read_dockerfile(text)
    if suffix in (".bat", ".cmd"):
        return read_batch(text)
    if suffix in (".service", ".container"):
        return read_unit(text)
    if suffix in (".log", ".prom"):
        return read_log(text)
    return _guess(text, name, variables)


def _guess(text: str, name: str, variables: Mapping[str, str]) -> list[Invocation]:
    """A file whose name does not tell its form."""
    head = text.lstrip()[:400]
    if head.startswith("{"):
        return _json(text)
    if re.search(r"(?m)^\[(Service|Unit|Container)\]\s*$", text[:20_000]):
        return read_unit(text)
    if "non-default args:" in text or "vllm:cache_config_info" in text or re.search(r"args: Namespace\(", text):
        return read_log(text)
    if re.search(r"(?m)^(services|apiVersion|kind|args|command|spec|servingEngineSpec|applications):", text):
        return _yaml(text, name, variables)
    if re.search(r"(?m)^(from|import) [\w.]+|^def \w+\(|\bLLM\(", text) and "#!/bin" not in head:
        try:
            if found := read_python(text):
                return found
        except InputError:
            pass
    if re.search(r"`\r?\n|\$env:", text, re.IGNORECASE):
        return read_powershell(text)
    if found := read_shell(text):
        return found
    if re.match(r"[\w.-]+:\s", head):
        return _yaml(text, name, variables)
    return []


def _yaml(text: str, name: str, variables: Mapping[str, str]) -> list[Invocation]:
    found: list[Invocation] = []
    for document in load_documents(text):
        found += _document(document, name, variables)
    return found


def _document(document: Any, name: str, variables: Mapping[str, str], depth: int = 0) -> list[Invocation]:
    if isinstance(document, list):
        return (
            read_containers({"args": document})
            if all(isinstance(item, str) for item in document)
            else (read_ray(document) or read_containers(document))
        )
    if not isinstance(document, Mapping):
        return []
    if isinstance(document.get("services"), Mapping) and "spec" not in document:
        return read_compose(document, variables)
    if is_production_stack(document):
        return read_values(document)
    if is_ray(document):
        return read_ray(document)
    if found := read_containers(document):
        return found
    if looks_like_engine_args(document):
        return [config_file(document, name or "config.yaml")]
    nested = [found for value in document.values() for found in _document(value, name, variables, depth + 1)]
    return nested or _embedded(document, depth)


def _embedded(document: Mapping[Any, Any], depth: int) -> list[Invocation]:
    """Scripts and YAML kept as strings: the data of a ConfigMap, the serveConfigV2 of a RayService."""
    found: list[Invocation] = []
    for key, value in document.items():
        if isinstance(value, str) and re.search(r"vllm|engine_kwargs", value) and "\n" in value and depth < 3:
            is_named = "." in str(key)
            is_yaml = re.match(r"\s*(---|#|[\w.-]+:(\s|$))", value) is not None
            with contextlib.suppress(InputError):
                found += _read(str(value), str(key) if is_named else ("x.yaml" if is_yaml else "x.sh"), {})
    return found


def _json(text: str) -> list[Invocation]:
    return _arguments(text, "JSON", json.loads)


def _toml(text: str) -> list[Invocation]:
    return _arguments(text, "TOML", tomllib.loads)


def _arguments(text: str, language: str, parse: Callable[[str], Any]) -> list[Invocation]:
    try:
        content = parse(text)
    except RecursionError:
        raise InputError(f"The {language} text is nested too deeply to be read.") from None
    except ValueError as error:
        raise InputError(f"Not {language}: {error}.") from None
    return _named(content, f"{language} engine arguments", 0)


def _named(content: Any, source: str, depth: int) -> list[Invocation]:
    if isinstance(content, Mapping):
        if is_ray(content):
            return read_ray(content)
        if looks_like_engine_args(content):
            return [engine_args(content, source)]
        if found := read_containers(content):
            return found
        content = list(content.values())
    if isinstance(content, list) and depth < 20:
        return [invocation for item in content for invocation in _named(item, source, depth + 1)]
    return []


def _is_compose_name(path: Path) -> bool:
    return path.suffix.lower() in (".yaml", ".yml")


def _attach_config(invocation: Invocation, folder: Path) -> None:
    """Load the file that `--config` names, if it lies beside the deployment."""
    texts = [word.text for word in invocation.words]
    for index, text in enumerate(texts[:-1]):
        if text != "--config" or texts[index + 1] in invocation.config_files:
            continue
        path = folder / Path(texts[index + 1]).name
        if path.suffix.lower() in (".yaml", ".yml") and path.is_file():
            documents = load_documents(_load(path))
            if documents and isinstance(documents[0], Mapping):
                invocation.config_files[texts[index + 1]] = json.dumps(documents[0], default=str)
