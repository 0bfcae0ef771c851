"""Reads containers wherever they stand in Kubernetes-like YAML: pods, workloads, KServe, llm-d values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headway.deployment.container_args import environment_of, kubernetes_word, line_of, text_of
from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.words import Word

_MODEL_FOLDER = "/mnt/models"
"""Where KServe puts a model given by storage URI."""


def read_containers(document: Any) -> list[Invocation]:
    """Every vLLM start in the containers of a document, in order."""
    found: list[Invocation] = []
    for container, parents in _containers(document, ()):
        invocation = _read(container, parents)
        if invocation is not None:
            found.append(invocation)
    return found


def _containers(node: Any, parents: tuple[Any, ...]) -> Iterator[tuple[Mapping[Any, Any], tuple[Any, ...]]]:
    if isinstance(node, Mapping):
        if _is_list(node.get("args")) or _is_list(node.get("command")):
            yield node, parents
        for value in node.values():
            yield from _containers(value, (*parents, node))
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value, (*parents, node))


def _is_list(value: Any) -> bool:
    return isinstance(value, list | str) and bool(value)


def _read(container: Mapping[Any, Any], parents: tuple[Any, ...]) -> Invocation | None:
    environment = environment_of(container.get("env"))
    command = _words(container.get("command"), environment)
    args = _words(container.get("args"), environment)
    image = container.get("image")
    found = find_start([*command, *args], environment, source="container", image_args=not command)
    if found is None or not (command or _is_vllm(container, args, parents)):
        return None
    found.name = text_of(container.get("name") or _name(parents))
    found.line = found.line or line_of((container.get("args") or [""])[0])
    if found.image is None and isinstance(image, str):
        found.image = image
    if found.image is None and isinstance(container.get("repository"), str):
        found.image = f"{container['repository']}:{text_of(container.get('tag') or 'latest')}"
    _gpus(container, found)
    _model(container, parents, found)
    return found


def _words(value: Any, environment: Mapping[str, Word]) -> list[Word]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return []
    return [kubernetes_word(item, environment) for item in value if not isinstance(item, dict | list)]


def _is_vllm(container: Mapping[Any, Any], args: list[Word], parents: tuple[Any, ...]) -> bool:
    """Flags alone count as vLLM's where image, name or the flags themselves say so."""
    hints = " ".join(text_of(container.get(key)) for key in ("image", "name", "modelCommand")).lower()
    if "vllm" in hints or "kserve" in hints or len(parents) == 0:
        return True
    if any(isinstance(parent, Mapping) and "vllm" in text_of(parent.get("kind", "")).lower() for parent in parents):
        return True
    known = ("--model", "--max-model-len", "--tensor-parallel-size", "--gpu-memory-utilization", "--served-model-name")
    return any(word.text.partition("=")[0].replace("_", "-") in known for word in args)


def _name(parents: tuple[Any, ...]) -> Any:
    for parent in reversed(parents):
        if isinstance(parent, Mapping) and isinstance(metadata := parent.get("metadata"), Mapping):
            return metadata.get("name")
    return None


def _gpus(container: Mapping[Any, Any], found: Invocation) -> None:
    resources = container.get("resources")
    if not isinstance(resources, Mapping):
        return
    for part in ("limits", "requests"):
        values = resources.get(part)
        for name, count in values.items() if isinstance(values, Mapping) else ():
            if str(name).endswith("/gpu") and str(count).isdigit() and len(str(count)) < 6:
                found.facts.setdefault("num_gpus", int(str(count)))


def _model(container: Mapping[Any, Any], parents: tuple[Any, ...], found: Invocation) -> None:
    """The model of KServe and llm-d forms, which give it outside the arguments."""
    if container.get("storageUri") and "modelFormat" in container:
        found.words = [Word(_MODEL_FOLDER), *found.words] if not _names_model(found) else found.words
        return
    for parent in reversed(parents):
        if not isinstance(parent, Mapping):
            continue
        artifacts = parent.get("modelArtifacts") or parent.get("model")
        uri = artifacts.get("uri") if isinstance(artifacts, Mapping) else None
        if isinstance(uri, str):
            model = uri.removeprefix("hf://")
            if not _names_model(found):
                found.words = [Word(model, line=line_of(uri)), *found.words]
            break
    for parent in reversed(parents):
        parallelism = parent.get("parallelism") if isinstance(parent, Mapping) else None
        if isinstance(parallelism, Mapping):
            _parallelism(parallelism, found)
            break


def _parallelism(parallelism: Mapping[Any, Any], found: Invocation) -> None:
    """llm-d passes `parallelism.tensor` and `.data` on as flags."""
    for key, flag in (("tensor", "--tensor-parallel-size"), ("data", "--data-parallel-size")):
        value = parallelism.get(key)
        if isinstance(value, int) and not any(word.text.startswith(flag) for word in found.words):
            found.words += [Word(flag), Word(str(value))]


def _names_model(found: Invocation) -> bool:
    if found.words and not found.words[0].text.startswith("-"):
        return True
    return any(word.text.partition("=")[0] == "--model" for word in found.words)
