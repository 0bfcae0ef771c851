"""How the next token of one request is chosen. Read by the executor's sampler; the core reads only the stops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.errors import RequestError

_MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling settings of one request, in vLLM's names and with its defaults.

    Args:
        temperature: 0 is greedy; otherwise logits are divided by it. Range 0 to 2.
        top_k: keep the k most likely tokens; 0 or -1 keeps all.
        top_p: keep the smallest set whose probability reaches top_p. Range (0, 1].
        min_p: drop tokens less likely than min_p times the most likely one. Range [0, 1].
        repetition_penalty: divides positive and multiplies negative logits of seen tokens. Range (0, 2].
        presence_penalty, frequency_penalty: subtracted from the logits of generated tokens, once or per occurrence.
        seed: makes this request reproducible whatever else is in the batch; None draws a fresh one.
        logit_bias: added to the logits of the given token ids, each -100 to 100.
        allowed_token_ids: if given, no other token can be sampled.
        stop: stop strings; the frontend cuts the text before the first that completes.
        stop_token_ids: token ids that end the request.
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: generate past the model's end-of-sequence tokens.
        min_tokens: end-of-sequence and stop ids cannot be sampled before this many output tokens.
        max_tokens: most output tokens; None fills the context.
        logprobs: number of most likely tokens to report with each output token; None reports nothing.
        prompt_logprobs: the same for prompt tokens.
        skip_special_tokens: leave special tokens out of the text.

    Example::

        >>> from headway import SamplingParams
        >>> SamplingParams(temperature=0.7, top_p=0.9, max_tokens=64, stop=("\\n",)).max_tokens
        64

    Raises:
        RequestError: a value is out of range; `param` names it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: frozenset[int] | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    max_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        _require(0.0 <= self.temperature <= 2.0, "temperature", "between 0 and 2", self.temperature)
        _require(self.top_k >= -1, "top_k", "-1, 0 (both off) or positive", self.top_k)
        _require(0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1", self.top_p)
        _require(0.0 <= self.min_p <= 1.0, "min_p", "between 0 and 1", self.min_p)
        _require(
            0.0 < self.repetition_penalty <= 2.0,
            "repetition_penalty",
            "above 0 and at most 2",
            self.repetition_penalty,
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2.0 <= getattr(self, name) <= 2.0, name, "between -2 and 2", getattr(self, name))
        for bias in self.logit_bias.values():
            _require(-100.0 <= bias <= 100.0, "logit_bias", "between -100 and 100", bias)
        _require(self.min_tokens >= 0, "min_tokens", "0 or more", self.min_tokens)
        if self.max_tokens is not None:
            _require(self.max_tokens >= 1, "max_tokens", "1 or more", self.max_tokens)
            _require(
                self.min_tokens <= self.max_tokens,
                "min_tokens",
                f"at most max_tokens ({self.max_tokens})",
                self.min_tokens,
            )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(self, name)
            if count is not None:
                _require(0 <= count <= _MAX_LOGPROBS, name, f"between 0 and {_MAX_LOGPROBS}", count)
        _require(all(self.stop), "stop", "a list of non-empty strings", list(self.stop))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse token ids that the model does not have.

        Raises:
            RequestError: an id in logit_bias, stop_token_ids or allowed_token_ids is outside 0 to vocab_size - 1.
        """
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            for token_id in getattr(self, name) or ():
                if not 0 <= token_id < vocab_size:
                    raise RequestError(
                        f"{name} names token id {token_id}, but the vocabulary has ids 0 to {vocab_size - 1}.",
                        param=name,
                    )
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty, so no token could be sampled.", param="allowed_token_ids")


def _require(ok: bool, name: str, range_text: str, value: object) -> None:
    if not ok:
        raise RequestError(f"{name} must be {range_text}, not {value!r}.", param=name)
