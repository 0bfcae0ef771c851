"""Offline generation: a list of prompts in, a list of results out."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import factory
from headway.config import EngineOptions
from headway.core.arrivals import Arrival, Finish, Inbox
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.core.request import FinishReason
from headway.core.sampling import SamplingParams
from headway.errors import RequestError
from headway.frontends.request_stream import Delta, GenerationRequest, ModelLimits, RequestStream, open_stream
from headway.text.chat import ChatTemplate
from headway.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
"""A text, or token ids."""
Message = Mapping[str, Any]
"""An OpenAI chat message: role and content."""

_BAR_FROM = 4
"""Fewer prompts than this show no progress bar unless asked to."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What one prompt got."""

    prompt_token_ids: Sequence[int]
    text: str
    token_ids: Sequence[int]
    finish_reason: FinishReason
    stop_reason: int | str | None
    """The stop string or id that ended it, if one did."""
    logprobs: Sequence[Any] | None
    """One entry a token, if asked for."""
    num_cached_tokens: int
    """Prompt tokens whose KV was in the prefix cache."""


class LLM:
    """A model to call from a script. Not thread-safe.

    Args:
        model: a Hugging Face folder or a GGUF file; None is the bundled default.
        options: settings of `EngineOptions`, by name.

    Example::

        >>> from headway import LLM, SamplingParams
        >>> llm = LLM(max_num_seqs=4)
        >>> greedy = SamplingParams(temperature=0.0, max_tokens=4)
        >>> [completion] = llm.generate(["The capital of France is"], greedy)
        >>> len(completion.token_ids)
        4

    Raises:
        ModelLoadError: the model cannot be read. ConfigError: settings that cannot work.
    """

    def __init__(self, model: str | Path | None = None, **options: Any) -> None:
        engine_options = EngineOptions(**options)
        loaded = factory.load_model(None if model is None else str(model), engine_options)
        inbox = Inbox()
        engine, config = factory.build_engine(loaded, engine_options, inbox, WallClock())
        limits = ModelLimits(
            config.scheduler.max_model_len, config.cache.block_size, loaded.vocab_size, loaded.eos_token_ids
        )
        self._set_up(engine, inbox, loaded.tokenizer, limits)

    @classmethod
    def over(cls, engine: Engine, inbox: Inbox, tokenizer: Tokenizer, limits: ModelLimits) -> LLM:
        """An LLM over an engine that is there already; `inbox` is its arrival source."""
        llm = cls.__new__(cls)
        llm._set_up(engine, inbox, tokenizer, limits)
        return llm

    def _set_up(self, engine: Engine, inbox: Inbox, tokenizer: Tokenizer, limits: ModelLimits) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.limits = limits
        self._inbox = inbox
        self._chat_template = ChatTemplate.of(tokenizer)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[Completion]:
        """Continue each prompt. Results are in the order of the prompts.

        Args:
            prompts: texts or token ids, or one of them alone.
            sampling: for all, or one for each; by default `SamplingParams()`.
            progress: show a bar on stderr; by default where there are several prompts and a terminal.

        Raises:
            RequestError: a prompt or a setting that cannot be run; nothing has been started then.
        """
        listed = _as_list(prompts)
        encoded = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in listed]
        return self._run(encoded, sampling, progress)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        **template_kwargs: Any,
    ) -> list[Completion]:
        """Answer each conversation, by the model's chat template.

        Args:
            conversations: one list of messages, or several.
            template_kwargs: variables of the template, `add_generation_prompt` and `continue_final_message` included.

        Raises:
            RequestError: as `generate`, or the template refuses the messages.
        """
        single = bool(conversations) and isinstance(conversations[0], Mapping)
        texts = [
            self._chat_template.render(messages, **template_kwargs)  # type: ignore[arg-type]
            for messages in ([conversations] if single else conversations)
        ]
        encoded = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return self._run(encoded, sampling, progress)

    def close(self) -> None:
        """Release the model."""
        self.engine.close()

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        progress: bool | None,
    ) -> list[Completion]:
        shared = SamplingParams() if sampling is None else sampling
        settings = [shared] * len(prompts) if isinstance(shared, SamplingParams) else list(shared)
        if len(settings) != len(prompts):
            raise RequestError(f"There are {len(prompts)} prompts, but {len(settings)} sampling settings.")
        streams = [
            open_stream(f"{next(self._ids)}", GenerationRequest(ids, one), self.engine, self.tokenizer, self.limits)
            for ids, one in zip(prompts, settings, strict=True)
        ]
        deltas: dict[str, list[Delta]] = {stream.request.request_id: [] for stream in streams}
        show = len(prompts) >= _BAR_FROM and sys.stderr.isatty() if progress is None else progress
        with _bar(len(prompts), show) as advance:
            for _ in self._steps(streams, deltas):
                advance()
        return [_completion(stream, deltas[stream.request.request_id]) for stream in streams]

    def _steps(self, streams: Sequence[RequestStream], deltas: dict[str, list[Delta]]) -> Iterator[RequestStream]:
        """Run the engine until all have ended; yields each as it ends."""
        open_streams = {stream.request.request_id: stream for stream in streams}
        for stream in streams:
            self._inbox.put(Arrival(stream.request))
        try:
            while open_streams:
                for output in self.engine.step():
                    stream = open_streams.get(output.request.request_id)  # type: ignore[assignment]
                    if stream is None:
                        continue
                    delta = stream.advance(output)
                    deltas[stream.request.request_id].append(delta)
                    if delta.finish_reason is None:
                        continue
                    del open_streams[stream.request.request_id]
                    if output.finish_reason is None:
                        finish = Finish(stream.request.request_id, FinishReason.STOP, delta.stop_reason)
                        self._inbox.put(finish)
                    yield stream
            while self.engine.has_work:  # the last stops from outside still have to be taken in
                self.engine.step()
        finally:
            for request_id in open_streams:
                self._inbox.put(Finish(request_id))


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _completion(stream: RequestStream, deltas: Sequence[Delta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    logprobs = None
    if any(delta.logprobs is not None for delta in deltas):
        logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    return Completion(
        prompt_token_ids=stream.spec.prompt_token_ids,
        text="".join(delta.text for delta in deltas),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=logprobs,
        num_cached_tokens=last.num_cached_tokens,
    )


@contextmanager
def _bar(total: int, show: bool) -> Iterator[Any]:
    """A progress bar on stderr; yields the function that moves it on by one."""
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("Generating", total=total)
        yield lambda: bar.advance(task)
