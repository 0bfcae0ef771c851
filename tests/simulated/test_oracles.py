"""What a step is, what it costs under constants and under the plain roofline, and what the executor makes of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from headway.catalog import find_accelerator, find_model
from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.plan import LockstepRun, ScheduledRequest, StepPlan
from headway.core.request import FinishReason, Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.executors.simulated.constant import ConstantOracle, parse_constants
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.simulated.oracle import Chunk, LatencyOracle, StepShape, decode_shape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.executors.simulated.shape import shape_of
from headway.executors.simulated.speculation import SpeculationModel


def _request(request_id: str, prompt: int, output: int) -> Request:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output)
    return Request(request_id, SyntheticContent(request_id), prompt, sampling, 8192)


def _item(tokens: int, computed: int, drafts: int = 0, padding: int = 0, samples: bool = True) -> ScheduledRequest:
    return ScheduledRequest(_request("r", 100, 10), tokens, computed, drafts, padding, (), samples)


def _plan(*items: ScheduledRequest, run: LockstepRun | None = None) -> StepPlan:
    return StepPlan(0, items, (), (), (), (), sum(item.num_tokens for item in items), run)


ORACLES: list[LatencyOracle] = [
    ConstantOracle(step_ms=1.0, prefill_us=30.0, decode_ms=10.0, decode_token_us=7.0, context_ns=3.0, host_ms=1.5),
    RooflineOracle(RooflineSetup(find_model("llama-3.1-8b"), find_accelerator("a100"))),
    RooflineOracle(RooflineSetup(find_model("qwen3-30b-a3b"), find_accelerator("h100"), tensor_parallel_size=2)),
]


class TestShapes:
    """A plan, as the oracle sees it."""

    def test_chunks_and_decodes_are_told_apart(self) -> None:
        """A chunk that does not reach the prompt's end samples nothing."""
        shape = shape_of(_plan(_item(1, 40), _item(64, 16, samples=False), _item(30, 0)))
        assert shape == StepShape((Chunk(64, 16), Chunk(30, 0)), 1, 1, 41, 2)
        assert shape.num_tokens == 95

    def test_drafts_are_rows_of_a_decode(self) -> None:
        """1 + k rows, the context of the last of them."""
        assert shape_of(_plan(_item(4, 40, drafts=3))) == StepShape((), 1, 4, 44, 1)

    def test_padding_lengthens_prompts_and_adds_rows_to_decodes(self) -> None:
        """Static batching pays for both."""
        assert shape_of(_plan(_item(30, 0, padding=70))).chunks == (Chunk(100, 0),)
        assert shape_of(_plan(_item(1, 40, padding=3))) == StepShape((), 1, 4, 41, 1)

    def test_a_lockstep_run_counts_as_its_decodes(self) -> None:
        """Alone, and beside a prompt."""
        run = LockstepRun(0, 5, 500, ())
        assert shape_of(_plan(run=run)) == decode_shape(5, 500)
        assert shape_of(_plan(_item(30, 0), run=run)) == StepShape((Chunk(30, 0),), 5, 5, 500, 6)


class TestPrices:
    """Properties that every oracle has."""

    @pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.provenance)
    def test_a_stride_costs_what_its_steps_cost(self, oracle: LatencyOracle) -> None:
        """To the last bit, or fast-forward would change results."""
        for num_decodes in (1, 7, 64, 300):
            price = oracle.decode_pricer(num_decodes)
            for context in (num_decodes, 1000 * num_decodes):
                assert price(context) == oracle.step_time(decode_shape(num_decodes, context)).device_s

    @pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle.provenance)
    def test_more_work_never_costs_less(self, oracle: LatencyOracle) -> None:
        """More context, more decodes, longer chunks, a longer past."""
        ladder = [
            decode_shape(8, 800),
            decode_shape(8, 8000),
            decode_shape(64, 8000),
            StepShape((Chunk(512, 0),), 64, 64, 8000, 65),
            StepShape((Chunk(2048, 0),), 64, 64, 8000, 65),
            StepShape((Chunk(2048, 6144),), 64, 64, 8000, 65),
        ]
        prices = [oracle.step_time(shape).device_s for shape in ladder]
        assert prices == sorted(prices) and prices[0] > 0

    def test_no_step_beats_the_memory_bandwidth(self) -> None:
        """Reading 70 GB of weights takes an H100 more than 20 ms."""
        setup = RooflineSetup(find_model("llama-3.3-70b"), find_accelerator("h100"), quantization="fp8")
        oracle = RooflineOracle(setup)
        assert 0.020 < oracle.floor_s(1, 512) < 0.022
        assert oracle.step_time(decode_shape(1, 512)).device_s > oracle.floor_s(1, 512)

    def test_an_accelerator_without_a_bandwidth_is_refused(self) -> None:
        """Said, not guessed."""
        with pytest.raises(ConfigError, match="bandwidth"):
            RooflineOracle(RooflineSetup(find_model("llama-3.1-8b"), find_accelerator("h100-64gb")))


class TestConstants:
    """`--latency constant:…`."""

    def test_the_sum_of_its_terms(self) -> None:
        """Checked by hand."""
        oracle = parse_constants("step_ms=1,prefill_us=30,decode_ms=10,decode_token_us=7,context_ns=3,host_ms=2")
        price = oracle.step_time(StepShape((Chunk(100, 50),), 4, 4, 1000, 5))
        assert price.device_s == pytest.approx(0.001 + 100 * 30e-6 + 0.010 + 4 * 7e-6 + 1000 * 3e-9)
        assert (price.host_s, price.provenance) == (0.002, "constant")
        assert math.isclose(sum(part.seconds for part in oracle.explain(decode_shape(4, 1000))), 0.013031)

    @pytest.mark.parametrize(
        "text", ["prefill=30", "prefill_us=-1", "prefill_us=x", "", "decode_ms=nan", "step_ms=inf"]
    )
    def test_what_is_no_constant_is_refused(self, text: str) -> None:
        """With the known names."""
        with pytest.raises(ConfigError, match=r"constant"):
            parse_constants(text)


def _run(
    executor: SimulatedExecutor, requests: list[Request], config: SchedulerConfig
) -> tuple[list[StepFinished], Scheduler]:
    scheduler = Scheduler(config, CacheConfig(500), engine_version="0.32.0")
    finished: list[StepFinished] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepFinished):
            finished.append(event)

    source = TraceSource((0.0, Arrival(request)) for request in requests)
    depth = 2 if config.async_scheduling else 1
    engine = Engine(scheduler, executor, VirtualClock(), source, max_in_flight=depth, listeners=[listen])
    for _ in engine.run():
        scheduler.check_integrity()
    return finished, scheduler


class TestExecutor:
    """Tokens and time."""

    def test_a_request_ends_at_its_known_length(self) -> None:
        """max_tokens is the workload's output length."""
        request = _request("r", 50, 7)
        events, _ = _run(SimulatedExecutor(ORACLES[0]), [request], SchedulerConfig(4, 64, 8192))
        assert (request.num_output_tokens, request.finish_reason) == (7, FinishReason.LENGTH)
        assert len(events) == 7

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_request_that_stops_by_itself(self, is_async: bool) -> None:
        """Asynchronous scheduling has spent one more step by then."""
        request = _request("r", 50, 100)
        executor = SimulatedExecutor(ORACLES[0], ends_after=lambda request: 5)
        events, _ = _run(executor, [request], SchedulerConfig(4, 64, 8192, async_scheduling=is_async))
        assert (request.num_output_tokens, request.finish_reason) == (5, FinishReason.STOP)
        assert sum(event.plan.num_tokens > 0 for event in events) == (6 if is_async else 5)

    @pytest.mark.parametrize(("host_ms", "period_ms"), [(4.0, 10.0), (16.0, 16.0)])
    def test_asynchronous_scheduling_hides_the_host(self, host_ms: float, period_ms: float) -> None:
        """A step starts when both the device is free and the host is ready: the longer of the two sets the pace."""
        oracle = ConstantOracle(decode_ms=10.0, host_ms=host_ms)
        for is_async, expected in ((False, 10.0 + host_ms), (True, period_ms)):
            config = SchedulerConfig(4, 64, 8192, async_scheduling=is_async)
            events, _ = _run(SimulatedExecutor(oracle), [_request("r", 50, 12)], config)
            ends = [event.at for event in events if event.plan.num_tokens]
            gaps = {round((after - before) * 1e3, 6) for before, after in itertools.pairwise(ends[3:])}
            assert gaps == {expected}

    def test_speculation_accepts_as_often_as_it_was_told(self) -> None:
        """Mean tokens a step of the geometric model; the same dice whoever runs beside."""
        model = SpeculationModel(3, 0.7)
        config = SchedulerConfig(8, 64, 8192, num_lookahead_tokens=3, num_speculative_tokens=3)
        alone = _request("a", 20, 400)
        events, _ = _run(SimulatedExecutor(ORACLES[0], speculation=model), [alone], config)
        brought = [event.outputs[0].num_tokens for event in events if event.outputs][1:-1]
        assert sum(brought) / len(brought) == pytest.approx(model.mean_tokens_per_step, rel=0.15)
        assert set(brought) == {1, 2, 3, 4}
        crowd = [_request("a", 20, 400), *(_request(f"b{i}", 30, 300) for i in range(4))]
        events, _ = _run(SimulatedExecutor(ORACLES[0], speculation=model), crowd, config)
        together = [o.num_tokens for event in events for o in event.outputs if o.request.request_id == "a"][1:-1]
        assert Counter(together[:60]) == Counter(brought[:60]) and together[:60] == brought[:60]

    def test_pipeline_stages_overlap_batches(self) -> None:
        """Two batches of one on two stages take as long as one of two on one; without overlap it would be twice."""
        ends = {}
        for stages in (1, 2):
            scheduler = Scheduler(
                SchedulerConfig(2, 64, 8192), CacheConfig(500), engine_version="0.32.0", max_in_flight=stages
            )
            requests = [_request(f"r{i}", 20, 50) for i in range(2)]
            source = TraceSource((0.004 * i, Arrival(request)) for i, request in enumerate(requests))
            oracle = ConstantOracle(step_ms=1.0, prefill_us=1.0, decode_ms=9.0)
            engine = Engine(scheduler, SimulatedExecutor(oracle), VirtualClock(), source, max_in_flight=stages)
            engine.num_stages = stages
            for _ in engine.run():
                scheduler.check_integrity()
            ends[stages] = engine.clock.now()
        assert ends[2] < 1.1 * ends[1]
