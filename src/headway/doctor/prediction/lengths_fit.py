"""Prompt and output lengths of the requests in the evidence, told or estimated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from headway.doctor.figures import Figures
from headway.doctor.prediction.deployment_fit import NotSimulatedError
from headway.doctor.prediction.gauges import Gauges
from headway.evidence.engine import Histogram
from headway.evidence.load import LoadResult
from headway.workload.lengths import LogNormalLength

_CHAT_SIGMA = 0.8
"""Spread of log-normal lengths where only means are known: the lower end of what chat traces show."""
_SEED = 0
_RESCALED = 2.0
"""A histogram's coarse buckets are stretched to its mean by at most this factor."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Where (prompt, output) tokens come from, and their means. `draw` gives as many as are wanted, always the same."""

    mean_prompt: float
    mean_output: float
    source: str
    pairs: tuple[tuple[int, int], ...] = ()
    prompt: Histogram | None = None
    output: Histogram | None = None
    sigma: float = 0.0
    assumptions: tuple[str, ...] = ()

    def draw(self, count: int, longest: int) -> list[tuple[int, int]]:
        """So many pairs, each at most `longest` tokens together."""
        rng = Random(_SEED)
        if self.pairs:
            found = list(itertools.islice(itertools.cycle(self.pairs), count))
        else:
            prompts = self._column(self.prompt, self.mean_prompt, count, longest, rng)
            outputs = self._column(self.output, self.mean_output, count, longest, rng)
            found = list(zip(prompts, outputs, strict=True))
        return [_fitted(prompt, output, longest) for prompt, output in found]

    def _column(self, histogram: Histogram | None, mean: float, count: int, longest: int, rng: Random) -> list[int]:
        if histogram is not None:
            return draw_histogram(histogram, count, longest, rng)
        if not self.sigma:
            return [max(1, round(mean))] * count
        median = max(1.0, mean * math.exp(-(self.sigma**2) / 2))
        return [LogNormalLength(median, self.sigma, longest).draw(rng) for _ in range(count)]


def _fitted(prompt: int, output: int, longest: int) -> tuple[int, int]:
    output = max(1, min(output, longest - 1))
    return max(1, min(prompt, longest - output)), output


def draw_histogram(histogram: Histogram, count: int, longest: int, rng: Random) -> list[int]:
    """Lengths by inverse distribution function at evenly spaced shares, shuffled, then stretched to the mean.

    Within a bucket all lengths are equally likely; those above the last bound lie between it and `longest`.
    """
    values = [_inverse(histogram, (index + 0.5) / count, longest) for index in range(count)]
    mean = sum(values) / count
    if histogram.mean is not None and mean > 0:
        factor = min(_RESCALED, max(1 / _RESCALED, histogram.mean / mean))
        values = [value * factor for value in values]
    rng.shuffle(values)
    return [max(1, min(longest, round(value))) for value in values]


def _inverse(histogram: Histogram, share: float, longest: int) -> float:
    value = histogram.quantile(share)
    if value is not None:
        return value
    last = max((bound for bound in histogram.bounds if math.isfinite(bound)), default=1.0)
    return min(float(longest), 1.5 * last)


def fit_lengths(figures: Figures, load: LoadResult | None, gauges: Gauges, pool_tokens: int) -> Lengths:
    """The lengths, from the best source there is: one by one, histograms, means, or the KV cache by Little's law.

    Args:
        pool_tokens: what the KV caches of all engines together hold.

    Raises:
        NotSimulatedError: nothing tells them.
    """
    if load is not None and load.lengths:
        prompts, outputs = zip(*load.lengths, strict=True)
        return Lengths(_mean(prompts), _mean(outputs), load.source, pairs=load.lengths)
    totals = figures.evidence.totals
    histograms = totals.histograms if totals is not None else {}
    prompt, output = (_usable(histograms.get(name)) for name in ("prompt_tokens", "generation_tokens"))
    means = figures.load.mean_prompt_tokens, figures.load.mean_output_tokens
    if load is not None and load.mean_prompt_tokens and load.mean_output_tokens:
        return Lengths(
            load.mean_prompt_tokens, load.mean_output_tokens, load.source,
            assumptions=("All requests have the mean lengths that the benchmark states.",),
        )  # fmt: skip
    if prompt is not None and output is not None and prompt.mean and output.mean:
        return Lengths(
            prompt.mean, output.mean, "the engine's histograms", prompt=prompt, output=output,
            assumptions=("Prompt and output lengths are drawn independently from the engine's histograms.",),
        )  # fmt: skip
    counted = _from_counters(figures) if not all(means) else means
    if counted[0] and counted[1]:
        return Lengths(
            counted[0], counted[1], "means", sigma=_CHAT_SIGMA,
            assumptions=(f"Lengths are log-normal around their means (sigma {_CHAT_SIGMA}).",),
        )  # fmt: skip
    return _from_gauges(figures, gauges, pool_tokens)


def _usable(histogram: Histogram | None) -> Histogram | None:
    if histogram is None or not histogram.counts or not (histogram.count or histogram.counts[-1]):
        return None
    return histogram


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _from_counters(figures: Figures) -> tuple[float | None, float | None]:
    totals = figures.evidence.totals
    if totals is None:
        return None, None
    requests = sum(totals.finished.values()) or totals.counters.get("requests") or 0.0
    if requests < 1:
        return None, None
    return (
        totals.counters.get("prompt_tokens", 0.0) / requests or None,
        totals.counters.get("generation_tokens", 0.0) / requests or None,
    )


def _from_gauges(figures: Figures, gauges: Gauges, pool: int) -> Lengths:
    """Little's law on the KV cache.

    A running request holds its prompt and, on average, half its output: usage × pool / running = (1 - hit rate) ×
    prompt + output / 2. Prompt over output tokens are as their rates. Together they give both lengths.
    """
    usage, running, rate = gauges.kv_usage, gauges.num_running, gauges.generation_tokens_per_s
    if not usage or not running or not rate:
        lacking = "prompt and output lengths are not told, and KV usage, running requests and tokens/s do not tell them"
        raise NotSimulatedError(f"The load cannot be told: {lacking}.")
    context = usage * pool / running
    ratio = (gauges.prompt_tokens_per_s or 0.0) / rate
    computed = 1.0 - (figures.load.prefix_hit_rate or 0.0)
    if ratio > 0:
        output = context / (computed * ratio + 0.5)
        prompt = ratio * output
        how = f"prompt : output = {ratio:.2g} : 1 as their tokens/s"
    else:
        prompt = output = context / 1.5
        how = "no prompt came while watched, so that prompts are taken to be as long as outputs"
    text = (
        f"Lengths by Little's law: {context:,.0f} tokens of KV cache for each running request, {how}, each request "
        f"half through its output on average: {prompt:,.0f} in, {output:,.0f} out, log-normal (sigma {_CHAT_SIGMA})."
    )
    return Lengths(max(1.0, prompt), max(1.0, output), "Little's law", sigma=_CHAT_SIGMA, assumptions=(text,))
