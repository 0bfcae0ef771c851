"""Builds evidence by hand: series of samples, flags, loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.invocation import Invocation
from headway.deployment.words import words
from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Fix
from headway.doctor.evidence import Evidence
from headway.doctor.fixes.candidates import candidates
from headway.doctor.rules import Findings, find_bottlenecks
from headway.evidence.engine import EngineSample
from headway.evidence.load import LoadResult

Values = Sequence[float | None] | float | None


def _at(values: Values, index: int) -> float | None:
    return values if values is None or isinstance(values, int | float) else values[index]


def samples(
    running: Sequence[float],
    waiting: Values = 0.0,
    kv: Values = None,
    generation: Values = None,
    prompt: Values = None,
    preemptions: Values = None,
    interval_s: float = 10.0,
    source: str = "log",
    engine: str = "0",
) -> tuple[EngineSample, ...]:
    """One sample for each value of `running`; a single number of another gauge holds for all."""
    return tuple(
        EngineSample(
            at_s=index * interval_s,
            engine=engine,
            num_running=count,
            num_waiting=_at(waiting, index),
            kv_usage=_at(kv, index),
            prompt_tokens_per_s=_at(prompt, index),
            generation_tokens_per_s=_at(generation, index),
            num_preemptions=_at(preemptions, index),
            source=source,
        )
        for index, count in enumerate(running)
    )


def flags(text: str, version: str = "0.19.0", gpu: str | None = "h100") -> Effective:
    """The effective configuration of `vllm serve …`."""
    invocation = Invocation("serve", "test", words=list(words(text.split())))
    return resolve_effective(invocation, engine_version=version, accelerator=gpu)


def sweep(rates: dict[int, float], **latencies: dict[int, float]) -> tuple[LoadResult, ...]:
    """Runs at rising concurrency: tokens/s, and other figures by concurrency."""
    return tuple(
        LoadResult(
            f"run {count}",
            concurrency=count,
            measured={"output_throughput": rate, **{key: values[count] for key, values in latencies.items()}},
        )
        for count, rate in rates.items()
    )


def judged(**parts: Any) -> tuple[Findings, list[Fix]]:
    """Findings and candidate fixes of evidence with these parts."""
    evidence = Evidence(**parts)
    findings = find_bottlenecks(evidence)
    return findings, candidates(evidence, findings)


def first(**parts: Any) -> BottleneckKind | None:
    """The most limiting bottleneck."""
    return judged(**parts)[0].first


def bottleneck(kind: BottleneckKind, **parts: Any) -> Bottleneck:
    """The bottleneck of a kind, which must be found."""
    found = judged(**parts)[0].get(kind)
    assert found is not None
    return found
