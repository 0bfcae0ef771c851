"""Chat messages as they come over the wire → the plain dicts that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import RequestError

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def normalize_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fresh copies of OpenAI chat messages in the shape that templates expect.

    The role `developer` becomes `system`. Content becomes one string: null is empty, and text parts are joined by
    line breaks, as vLLM and llama.cpp do. Arguments of earlier tool calls are parsed, since templates expect objects.
    Other fields (`name`, `tool_call_id`, `reasoning_content`, …) pass unless they are null.

    Raises:
        RequestError: no message, an unknown role, a part that is not text, or arguments that are not JSON.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise _bad("messages must be a list of messages.")
    if not messages:
        raise _bad("messages is empty: at least one message is needed.")
    return [_normalize(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _normalize(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _bad(f"{where} must be an object with role and content.")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _bad(f"{where}.role must be one of {', '.join(_ROLES)}, not {_shown(role)}.")
    normalized = {key: value for key, value in message.items() if value is not None}
    normalized["role"] = _ROLES[role]
    normalized["content"] = _text(message.get("content"), f"{where}.content")
    if calls := message.get("tool_calls"):
        normalized["tool_calls"] = _parse_calls(calls, f"{where}.tool_calls")
    return normalized


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _bad(f"{where} must be a string, null or a list of text parts.")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else part
        if kind != "text":
            raise _bad(f"{where}[{index}] must be a part of type 'text', not {_shown(kind)}.")
        if not isinstance(part.get("text"), str):
            raise _bad(f"{where}[{index}].text must be a string.")
        texts.append(part["text"])
    return "\n".join(texts)


def _parse_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise _bad(f"{where} must be a list.")
    parsed = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise _bad(f"{where}[{index}].function must be an object.")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except ValueError as error:
                raise _bad(f"{where}[{index}].function.arguments must be JSON ({error}).") from error
        parsed.append({**call, "function": {**function, "arguments": arguments}})
    return parsed


def _shown(value: Any) -> str:
    """A client's value for an error message, bounded."""
    return repr(value)[:60]


def _bad(message: str) -> RequestError:
    return RequestError(message, param="messages")
