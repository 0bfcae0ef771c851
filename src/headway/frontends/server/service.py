"""What every endpoint works with."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from headway.config import ServerOptions
from headway.core.arrivals import Inbox
from headway.core.engine import Engine
from headway.errors import ConfigError, ModelNotFoundError, RequestError
from headway.frontends.async_engine import AsyncEngine
from headway.frontends.request_stream import ModelLimits
from headway.frontends.server.errors import shorten
from headway.frontends.server.metrics import ServerMetrics
from headway.text.chat import ChatTemplate
from headway.text.tokenizer import Tokenizer

_INLINE_CHARS = 4096
"""Longer texts are encoded in a thread, so that one long prompt does not hold up everybody's tokens."""


_TEMPLATE_SWITCHES = ("add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class Service:
    """One model behind HTTP."""

    engine: AsyncEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    model_name: str
    model_root: str
    created: int
    metrics: ServerMetrics
    api_key: str | None = None
    sse_keep_alive_s: float = 15.0

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served; no name means the one there is.

        Raises:
            ModelNotFoundError: another name.
        """
        if name is not None and name != self.model_name:
            raise ModelNotFoundError(f"The model `{shorten(name, 200)}` does not exist.", param="model")

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; a long one does not hold up the event loop.

        Raises:
            RequestError: not valid Unicode.
        """
        if len(text) <= _INLINE_CHARS:
            return self.tokenizer.encode(text, add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens)

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool | None,
        add_special_tokens: bool | None,
        template_kwargs: dict[str, Any] | None,
    ) -> list[int]:
        """Token ids of a conversation, by the model's template.

        Raises:
            RequestError: the template, or a message, is not acceptable.
        """
        kwargs = dict(template_kwargs or {})
        if "tools" in kwargs or not all(type(kwargs.get(name, True)) is bool for name in _TEMPLATE_SWITCHES):
            raise RequestError(
                f"chat_template_kwargs may not set tools; {' and '.join(_TEMPLATE_SWITCHES)} must be true or false.",
                param="chat_template_kwargs",
            )
        # As in vLLM, what chat_template_kwargs says of these two wins over the fields of the same name.
        kwargs.setdefault("continue_final_message", bool(continue_final_message))
        opens = not kwargs["continue_final_message"] if add_generation_prompt is None else add_generation_prompt
        kwargs.setdefault("add_generation_prompt", opens)
        text = await asyncio.to_thread(self.chat_template.render, messages, **kwargs)
        return await self.encode(text, bool(add_special_tokens))


def check_options(options: ServerOptions) -> None:
    """Refuse HTTP settings that no server can work with.

    Raises:
        ConfigError: naming the setting.
    """
    for name in ("api_key", "served_model_name"):
        if getattr(options, name) == "":
            raise ConfigError(f"{name} is empty.", hint="Leave it out or give it a value.")
    if options.max_queue < 1:
        raise ConfigError(f"max_queue must be at least 1, not {options.max_queue}.")
    if not 0 <= options.sse_keep_alive_s < float("inf"):
        raise ConfigError(f"sse_keep_alive_s must be 0 (off) or a number of seconds, not {options.sse_keep_alive_s}.")


def make_service(
    engine: Engine,
    inbox: Inbox,
    tokenizer: Tokenizer,
    limits: ModelLimits,
    *,
    model_name: str,
    model_root: str | None = None,
    options: ServerOptions | None = None,
    cache_dtype: str = "auto",
) -> Service:
    """Put an engine that reads from `inbox` behind a service.

    Args:
        cache_dtype: number format of the KV cache, shown in `vllm:cache_config_info`.

    Raises:
        ConfigError: see `check_options`.
    """
    options = options or ServerOptions()
    check_options(options)
    name = options.served_model_name or model_name
    metrics = ServerMetrics(engine, name, limits.max_model_len, cache_dtype)
    return Service(
        engine=AsyncEngine(engine, inbox, tokenizer, limits, max_queue=options.max_queue, observer=metrics),
        tokenizer=tokenizer,
        chat_template=ChatTemplate.of(tokenizer),
        model_name=name,
        model_root=model_root or model_name,
        created=int(time.time()),
        metrics=metrics,
        api_key=options.api_key,
        sse_keep_alive_s=options.sse_keep_alive_s,
    )


def service_of(request: Request) -> Service:
    """The service behind the app that got this request."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
