"""Reading a request's body: bounded, JSON, typed, and free of fields whose effect is not implemented."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from headway.errors import RequestError
from headway.frontends.server.errors import BodyTooLargeError, ClientGoneError, MediaTypeError, shorten

MAX_BODY_BYTES = 16 * 2**20

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")

_OFF = (None, False)
_EMPTY: tuple[Any, ...] = (None, "", [], {})
UNSUPPORTED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "tools": (None,),
    "functions": (None,),
    "tool_choice": (None, "none", "auto"),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json_object": _OFF,
    "structural_tag": (None,),
    "json_schema": _EMPTY,
    "grammar": _EMPTY,
    "suffix": (None, ""),
    "prompt_logprobs": (None,),
    "logits_processors": _EMPTY,
    "bad_words": _EMPTY,
    "use_beam_search": _OFF,
    "prompt_embeds": _EMPTY,
    "repetition_detection": _EMPTY,
    "thinking_token_budget": (None,),
    "truncation_side": (None, "left"),
    "chat_template": (None,),
    "documents": _EMPTY,
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "typical_p": (None, 1, 1.0),
    "top_a": (None, 0, 0.0),
    "top_n_sigma": (None, -1, -1.0),
    "tfs_z": (None, 1, 1.0),
    "mirostat": (None, 0),
    "dry_multiplier": (None, 0, 0.0),
    "xtc_probability": (None, 0, 0.0),
    "dynatemp_range": (None, 0, 0.0),
}
"""Fields that would change the output and are not implemented, with the values that change nothing."""


UNSUPPORTED_CHAT_FIELDS: Mapping[str, tuple[Any, ...]] = {**UNSUPPORTED_FIELDS, "echo": _OFF}
"""The same for chat, where `echo` would repeat the last message."""


async def read_json(request: Request, limit: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        MediaTypeError: not declared as application/json. BodyTooLargeError: longer than `limit` bytes.
        RequestError: not JSON, or not an object. ClientGoneError: the client left while sending.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            f"The body's Content-Type is {shorten(media_type, 60) or 'missing'}.", hint="Send application/json."
        )
    body = await _read_bounded(request, limit)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(document, dict):
        raise RequestError("The body must be a JSON object.")
    return document


def parse(document: dict[str, Any], cls: type[T]) -> T:
    """The typed body.

    Raises:
        RequestError: a field is missing or has the wrong type; `param` names it.
    """
    try:
        return msgspec.convert(document, cls)
    except RecursionError:
        raise RequestError("The body is nested too deeply.") from None
    except msgspec.ValidationError as error:
        message = str(error)
        path, missing = _PATH.search(message), _MISSING.search(message)
        param = path["path"] if path else None
        if missing:
            param = f"{param}.{missing['field']}" if param else missing["field"]
        text = _PATH.sub("", message)
        raise RequestError(f"{param}: {text}." if param else f"{text}.", param=param) from None


def refuse_unsupported(document: Mapping[str, Any], fields: Mapping[str, tuple[Any, ...]] = UNSUPPORTED_FIELDS) -> None:
    """Refuse a field that would change the output and is not implemented; any other unknown field is ignored.

    Args:
        fields: the fields, each with the values that change nothing.

    Raises:
        RequestError: with `param`.
    """
    for name in document.keys() & fields.keys():
        value = document[name]
        if not any(type(value) is type(inert) and value == inert for inert in fields[name]):
            raise RequestError(f"{name} is not supported by this server.", hint="Leave it out.", param=name)
    n, best_of = document.get("n") or 1, document.get("best_of")
    if best_of is not None and best_of != n:
        raise RequestError("best_of is not supported by this server unless it equals n.", param="best_of")


async def _read_bounded(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise BodyTooLargeError(f"The body has {declared} bytes; at most {limit} are read.")
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise BodyTooLargeError(f"The body is longer than {limit} bytes.")
            parts.append(part)
    except ClientDisconnect:
        raise ClientGoneError("The client closed the connection.") from None
    return b"".join(parts)
