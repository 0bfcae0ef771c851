"""Settings given by name: vLLM's `--config` YAML, JSON or TOML of engine arguments, keyword arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.catalog.flags import all_flags, flags_of
from headway.catalog.versions import Version
from headway.deployment.arguments import Written
from headway.deployment.container_args import line_of
from headway.deployment.invocation import Form, Invocation
from headway.deployment.words import Word


def settings_of(content: Mapping[Any, Any], origin: str, defaults: tuple[str, ...] = ()) -> dict[str, Written]:
    """Settings from a mapping of names to values, taken as they are."""
    settings: dict[str, Written] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        unresolved: tuple[str, ...] = ()
        if isinstance(value, Word):
            unresolved, value = value.unresolved, value.text
        settings[name] = Written(name, value, str(key), str(value), line_of(value), unresolved, defaults, origin)
    return settings


def engine_args(content: Mapping[Any, Any], source: str) -> Invocation:
    """An invocation from engine arguments given by name, as EngineArgs(**content) takes them."""
    return Invocation("settings", source, settings=settings_of(content, source))


def config_file(content: Mapping[Any, Any], path: str) -> Invocation:
    """An invocation `vllm serve --config PATH` from the file's content.

    The content is kept as text and read with the version at hand, because what becomes of `false` differs.
    """
    found = Invocation("serve", "vLLM config file", words=[Word("--config"), Word(path)])
    found.config_files[path] = json.dumps(dict(content), default=str)
    return found


def config_words(content: Mapping[Any, Any], version: Version, form: Form) -> tuple[list[Word], list[str]]:
    """The words that vLLM makes of a config file, and the keys that it drops.

    A key with `false` is dropped: the parser of `vllm serve` never knows a `--no-` form at that point, and the module's
    own parser knows it from 0.28.0. Mappings are JSON from 0.16.0; before, their text.
    """
    known = {flag.option for flag in flags_of(version).values() if flag.kind(version) == "bool"}
    result: list[Word] = []
    dropped: list[str] = []
    for key, value in content.items():
        option = Word(f"--{key}", line=line_of(value))
        if value is True:
            result.append(option)
        elif value is False:
            negated = form == "api_server" and version >= (0, 28, 0) and option.text in known
            if negated:
                result.append(replace(option, text=f"--no-{key}"))
            elif _is_on_by_default(str(key), version):
                dropped.append(str(key))
        elif isinstance(value, list):
            if value:
                result += [option, *(Word(str(item), line=line_of(item)) for item in value)]
        elif isinstance(value, Mapping):
            text = json.dumps(value) if version >= (0, 16, 0) else str(dict(value))
            result += [option, Word(text, line=option.line)]
        else:
            result += [option, Word(str(value), line=option.line)]
    return result, dropped


def _is_on_by_default(key: str, version: Version) -> bool:
    """Dropping `false` changes nothing where false is the default."""
    flag = all_flags().get(key.replace("-", "_"))
    return flag is None or flag.default(version) is not False
