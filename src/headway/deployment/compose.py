"""Reads docker-compose files: `command` as list, string or folded text, with `.env` and `environment`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headway.deployment.container_args import COMPOSE, compose_word, environment_of, line_of, split_words, text_of
from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.words import Word


def read_compose(document: Mapping[Any, Any], variables: Mapping[str, str]) -> list[Invocation]:
    """The vLLM services of a compose file; `variables` is the content of `.env` beside it."""
    found: list[Invocation] = []
    services = document.get("services")
    for name, service in services.items() if isinstance(services, Mapping) else ():
        if isinstance(service, Mapping) and (invocation := _read(str(name), service, variables)) is not None:
            found.append(invocation)
    return found


def read_env_file(text: str) -> dict[str, str]:
    """`NAME=value` lines of a `.env` file."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*", line)
        if match is None or line.lstrip().startswith("#"):
            continue
        name, value = match.groups()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        else:
            value = re.sub(r"\s+#.*", "", value)
        variables[name] = value
    return variables


def _read(name: str, service: Mapping[Any, Any], variables: Mapping[str, str]) -> Invocation | None:
    environment = {
        key: word if word.unresolved else compose_word(word.text, variables)
        for key, word in environment_of(service.get("environment")).items()
    }
    entry = _words(service.get("entrypoint"), variables)
    command = _words(service.get("command"), variables)
    image = service.get("image")
    found = find_start([*entry, *command], environment, source="compose service", image_args=not entry)
    if found is None:
        return None
    found.name = name
    found.line = found.line or line_of(service.get("command"))
    if isinstance(image, str):
        found.image = compose_word(image, variables).text
    _devices(service, found)
    return found


def _words(value: Any, variables: Mapping[str, str]) -> list[Word]:
    if isinstance(value, list):
        return [compose_word(item, variables) for item in value if not isinstance(item, dict | list)]
    if isinstance(value, str):
        return split_words(value, lambda raw: compose_word(raw, variables), COMPOSE, line_of(value))
    return []


def _devices(service: Mapping[Any, Any], found: Invocation) -> None:
    """GPUs that the service reserves."""
    node: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        node = node.get(key) if isinstance(node, Mapping) else None
    count = 0
    for device in node if isinstance(node, list) else []:
        if not isinstance(device, Mapping):
            continue
        ids = device.get("device_ids")
        given = device.get("count")
        if isinstance(ids, list):
            joined = [text_of(item) for item in ids]
            count += sum(len(item.split(",")) for item in joined)
            if any("," in item for item in joined):
                message = (
                    f"device_ids is one string {next(item for item in joined if ',' in item)!r}, not a list of ids."
                )
                found.lint("device-ids-in-one-string", "warning", message, line_of(ids[0]))
        elif isinstance(given, int):
            count += given
    if count:
        found.facts["num_gpus"] = count
