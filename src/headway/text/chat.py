"""Chat messages → the prompt text that a model was trained on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from headway.errors import RequestError
from headway.extras import require
from headway.text.chat_messages import normalize_messages
from headway.text.tokenizer import Tokenizer

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
# Ends in a space so that a template that trims content shows itself.
_CONTINUE_MARK = "\x02headway-continue\x03 "
_MESSAGE_LIMIT = 300


class ChatTemplate:
    """A model's Jinja chat template, in a sandbox: it can neither change its input nor reach Python's internals.

    The environment is the one templates are written for: `trim_blocks`, `lstrip_blocks`, loop controls,
    `{% generation %}` blocks, `raise_exception`, `strftime_now`, and a `tojson` that keeps non-ASCII text and HTML
    characters as they are. The template is compiled at the first use.

    Args:
        source: Jinja source, or None for a model that knows no chat (rendering then raises).
        bos_token: text of the BOS token, or None.
        eos_token: text of the EOS token, or None.
        now: the clock behind `strftime_now`.

    Raises:
        ConfigError: jinja2 is not installed.
    """

    def __init__(
        self,
        source: str | None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._environment = _environment(now)
        self._compiled: Any = None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that a tokenizer carries."""
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation. Encode it with `add_special_tokens=False`.

        Args:
            messages: OpenAI chat messages; see `normalize_messages` for what is accepted.
            add_generation_prompt: end with the opening of an assistant turn.
            continue_final_message: leave the last message open, so that the model goes on with it.
            tools: OpenAI tool definitions, for templates that show them to the model.
            kwargs: further variables for the template (`chat_template_kwargs` on the wire).

        Raises:
            RequestError: the model has no template, a message is not acceptable, or the template refuses.
        """
        if self._source is None:
            raise RequestError(
                "This model has no chat template.", hint="Use /v1/completions with a prompt.", param="messages"
            )
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt cannot both be true.",
                param="continue_final_message",
            )
        if reserved := _RESERVED & kwargs.keys():
            raise RequestError(
                f"chat_template_kwargs may not set {', '.join(sorted(reserved))}.", param="chat_template_kwargs"
            )
        conversation = normalize_messages(messages)
        if continue_final_message:
            conversation[-1]["content"] += _CONTINUE_MARK
        text = self._run(
            {
                **self._tokens,
                **kwargs,
                "messages": conversation,
                "tools": list(tools) if tools else None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return _open_end(text) if continue_final_message else text

    def _run(self, variables: Mapping[str, Any]) -> str:
        jinja2 = require("jinja2")
        try:
            if self._compiled is None:
                self._compiled = self._environment.from_string(self._source)
            text: str = self._compiled.render(variables)
        except jinja2.TemplateSyntaxError as error:
            raise RequestError(
                f"The chat template is not valid Jinja (line {error.lineno}): {_short(error)}", param="messages"
            ) from error
        except jinja2.TemplateError as error:
            raise RequestError(f"The chat template refuses the messages: {_short(error)}", param="messages") from error
        except Exception as error:  # templates are programs: they divide by zero, index None and recurse
            raise RequestError(
                f"The chat template fails on the messages: {type(error).__name__}: {_short(error)}", param="messages"
            ) from error
        return text


def _environment(now: Callable[[], datetime]) -> Any:
    sandbox = require("jinja2.sandbox")

    def raise_exception(message: str) -> None:
        raise require("jinja2").TemplateError(message)

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation_blocks()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment


def _generation_blocks() -> Any:
    """`{% generation %}…{% endgeneration %}` marks what the assistant said, for training; here it is its content."""
    jinja2, extension = require("jinja2"), require("jinja2.ext").Extension

    def parse(_self: Any, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)

    return type("GenerationBlocks", (extension,), {"tags": {"generation"}, "parse": parse})


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _open_end(text: str) -> str:
    """The rendered text up to the mark at the end of the last message's content.

    Where the template trims content, so is the open end: it is what the model saw in training.
    """
    head, mark, tail = text.rpartition(_CONTINUE_MARK.rstrip())
    if not mark:
        raise RequestError(
            "The chat template changes the final message, so it cannot be continued.", param="continue_final_message"
        )
    return head if tail.startswith(" ") else head.rstrip()


def _short(error: Exception) -> str:
    return str(error)[:_MESSAGE_LIMIT]
