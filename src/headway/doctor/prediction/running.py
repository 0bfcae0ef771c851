"""Running a fitted workload, with a bound on the work of it, so that an answer never takes minutes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headway.accuracy.step_recording import Recording, record
from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestArrived, StepFinished, StrideFinished
from headway.doctor.prediction.deployment_fit import NotSimulatedError
from headway.doctor.prediction.grain import coarse_deployment, fine_summary
from headway.doctor.prediction.windowed import simulate_window
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.report.summary import Summary
from headway.simulation.run import SimulatedDeployment

MOST_WORK = 800_000.0
"""Work of one simulation, in microseconds of a core as it was when this was written."""
MOST_WORK_OF_A_FIX = 2 * MOST_WORK
_REQUEST, _STEP, _SCHEDULED, _IN_LOCKSTEP, _STRIDDEN, _BLOCK = 200.0, 45.0, 4.5, 0.3, 10.0, 1.0
"""Of a request, a step, a request that is scheduled by itself in it, one in lockstep, a step within a stride, and a KV
block of the pool. Fitted to the times of some fifty simulations, most of which it tells within a third."""
_LEAST_SHARE, _HALF = 1 / 16, 0.5

_Result = TypeVar("_Result")


class TooMuchWorkError(Exception):
    """A simulation was given up; `share` is what may be left of its steps."""

    def __init__(self, share: float) -> None:
        super().__init__(f"more work than it may be: {share:.0%} of its steps would do")
        self.share = share


@dataclass(slots=True)
class Meter:
    """Adds up the work of a simulation and gives it up beyond a bound. See `headway.simulation.run.Observer`."""

    most: float
    num_requests: int
    num_output_tokens: int
    work: float = 0.0
    num_tokens: int = 0
    num_arrived: int = 0

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `Observer`."""
        self.work += _BLOCK * engine.scheduler.kv.pool.num_usable_blocks
        return self

    def __call__(self, event: Event) -> None:
        """See `headway.core.engine.Listener`.

        Raises:
            TooMuchWorkError: the work has grown beyond the bound.
        """
        if isinstance(event, RequestArrived):
            self.work += _REQUEST
            self.num_arrived += 1
        elif isinstance(event, StepFinished):
            run = event.plan.lockstep
            num_together = run.num_requests if run is not None and run.items is None else 0
            self.work += _STEP + _SCHEDULED * len(event.plan.scheduled) + _IN_LOCKSTEP * num_together
            self.num_tokens += num_together
            self.num_tokens += sum(output.num_tokens for output in event.outputs if not output.in_lockstep)
        elif isinstance(event, StrideFinished):
            self.work += _STRIDDEN * event.stride.num_steps
            self.num_tokens += event.stride.num_steps * event.stride.num_requests
        if self.work > self.most:
            raise TooMuchWorkError(self._share())

    def _share(self) -> float:
        """Requests cost what they do; of all else, as much as there would be, what the bound leaves room for."""
        done = max(self.num_tokens / max(1, self.num_output_tokens), 1e-6)
        others = max(0.0, self.work - _REQUEST * self.num_arrived) / done
        room = max(0.25 * self.most, self.most - _REQUEST * self.num_requests)
        return max(_LEAST_SHARE, min(0.9, room / max(others, 1.0)))


def simulate_fitted(
    deployment: SimulatedDeployment, workload: FittedWorkload, most_work: float = math.inf
) -> tuple[Summary, float]:
    """The summary of a workload on a deployment, and the work that it was.

    Raises:
        TooMuchWorkError: it would be more work than that.
    """
    meter = _meter(workload, most_work)
    coarse = coarse_deployment(deployment, workload.grain)
    summary = simulate_window(coarse, workload.workload(), workload.window, observers=[meter])
    return fine_summary(summary, workload.grain), meter.work


def record_fitted(deployment: SimulatedDeployment, workload: FittedWorkload, most_work: float) -> Recording:
    """The steps of a workload on a deployment; coarse ones, if the workload is.

    Raises:
        TooMuchWorkError: it would be more work than that.
    """
    coarse = coarse_deployment(deployment, workload.grain)
    return record(coarse, workload.workload(), observers=[_meter(workload, most_work)])[0]


def within_bounds(
    run: Callable[[FittedWorkload, float], _Result], workload: FittedWorkload
) -> tuple[_Result, FittedWorkload]:
    """What `run` makes of a workload and a bound on work, and the workload: made cheaper until it keeps to the bound.

    What cannot be made cheaper may take some times as much.

    Raises:
        NotSimulatedError: even then it is too much.
    """
    most = MOST_WORK if workload.cheaper(_HALF) is not None else MOST_WORK_OF_A_FIX
    while True:
        try:
            return run(workload, most), workload
        except TooMuchWorkError as error:
            cheaper = workload.cheaper(error.share)
            if cheaper is None and most > MOST_WORK:
                raise NotSimulatedError(
                    "The load is too much work to simulate: nothing of it can be left out."
                ) from None
            workload, most = cheaper or workload, most if cheaper else MOST_WORK_OF_A_FIX


def _meter(workload: FittedWorkload, most_work: float) -> Meter:
    tokens = sum(request.num_output_tokens for request in workload.requests)
    return Meter(most_work, len(workload.requests), tokens // workload.grain)
