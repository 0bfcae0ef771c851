"""Follows a run over time: queue, seats, KV cache and tokens, for plots and traces."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.engine import Engine, Listener
from headway.core.events import Event, StepFinished, StrideFinished
from headway.report.perfetto import PerfettoWriter

MAX_SAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of one rank at an instant, and tokens generated until then."""

    at: float
    num_running: int
    num_waiting: int
    kv_usage: float
    num_tokens: int


class Timeline:
    """An observer of a simulation: keeps at most `MAX_SAMPLES` evenly spread samples a rank, whatever the length."""

    def __init__(self) -> None:
        self.ranks: list[list[Sample]] = []

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `headway.simulation.run.Observer`."""
        samples: list[Sample] = []
        self.ranks.append(samples)
        return _Sampler(engine, samples)


class _Sampler:
    def __init__(self, engine: Engine, samples: list[Sample]) -> None:
        self._scheduler = engine.scheduler
        self._samples = samples
        self._interval_s = 0.0
        self._next_at = 0.0

    def __call__(self, event: Event) -> None:
        """See `headway.core.engine.Listener`."""
        if isinstance(event, StepFinished):
            now = event.at
        elif isinstance(event, StrideFinished):
            now = event.ends_at[-1]
        else:
            return
        if now < self._next_at:
            return
        scheduler, samples = self._scheduler, self._samples
        samples.append(
            Sample(
                now,
                len(scheduler.running),
                len(scheduler.waiting),
                scheduler.kv.pool.usage,
                scheduler.stats.num_generation_tokens,
            )
        )
        if len(samples) > MAX_SAMPLES:
            self._interval_s = 2.0 * max(self._interval_s, (samples[-1].at - samples[0].at) / MAX_SAMPLES)
            del samples[1::2]
        self._next_at = now + self._interval_s


class TraceRecorder:
    """An observer of a simulation: writes its steps and counters to a Perfetto trace."""

    def __init__(self, writer: PerfettoWriter) -> None:
        self._writer = writer

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `headway.simulation.run.Observer`."""
        scheduler, writer = engine.scheduler, self._writer
        last_end = 0.0

        def listen(event: Event) -> None:
            nonlocal last_end
            if isinstance(event, StepFinished):
                plan, result = event.plan, event.result
                ended_at, num_decodes = event.at, plan.lockstep.num_requests if plan.lockstep is not None else 0
                num_decodes += sum(item.num_tokens == 1 for item in plan.scheduled)
                if not plan.num_tokens:
                    return
                name = "decode" if plan.num_tokens == num_decodes else "prefill + decode" if num_decodes else "prefill"
                args = {"step": plan.step_id, "tokens": plan.num_tokens, "decodes": num_decodes}
                if plan.preempted:
                    args["preempted"] = len(plan.preempted)
                writer.step(rank, max(last_end, ended_at - result.duration_s), ended_at, name, args)
            elif isinstance(event, StrideFinished):
                stride, ended_at = event.stride, event.ends_at[-1]
                args = {"step": stride.first_step_id, "steps": stride.num_steps, "decodes": stride.num_requests}
                writer.step(rank, last_end, ended_at, f"decode × {stride.num_steps}", args)
            else:
                return
            last_end = ended_at
            writer.counters(
                rank,
                ended_at,
                {
                    "running": len(scheduler.running),
                    "waiting": len(scheduler.waiting),
                    "KV usage": round(scheduler.kv.pool.usage, 4),
                },
            )

        return listen
