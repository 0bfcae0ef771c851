"""The bundled model served in this process, and scraped under a load: what an operator of `headway serve` would see."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from headway import factory
from headway.config import EngineOptions
from headway.core.arrivals import Inbox
from headway.core.sampling import SamplingParams
from headway.doctor.diagnosis import Fix
from headway.frontends.async_engine import AsyncEngine
from headway.frontends.request_stream import GenerationRequest, ModelLimits
from headway.frontends.server.metrics import ServerMetrics


class CpuClock:
    """This process's CPU time: what others do on the machine slows nothing down. It stands still while nothing runs."""

    def __init__(self) -> None:
        self._origin = time.process_time()

    def now(self) -> float:
        """See `Clock.now`."""
        return time.process_time() - self._origin

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """See `Clock.finish_step`: a real step is over when it is over."""

    def wait_until(self, instant: float | None, wake: threading.Event | None = None) -> None:
        """See `Clock.wait_until`; only for arrivals that wake it."""
        assert instant is None and wake is not None
        wake.wait()
        wake.clear()


class Ask(NamedTuple):
    """One request: seconds after the start (0, or while others run), prompt tokens, output tokens."""

    after_s: float
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class RealServer:
    """Settings of a served model, and a load."""

    options: EngineOptions
    asks: Sequence[Ask]
    scrape_interval_s: float = 0.25

    def with_fix(self, fix: Fix) -> RealServer:
        """The same server after a change that the doctor asks for, and nothing else."""
        name = {"num_gpu_blocks_override": "num_blocks"}.get(fix.setting, fix.setting)
        return replace(self, options=replace(self.options, **{name: fix.to_value}))

    @property
    def command(self) -> str:
        """How it was started, in the flags that vLLM has for it."""
        options = self.options
        words = ["vllm", "serve", "HuggingFaceTB/SmolLM2-135M-Instruct", "--max-model-len", options.max_model_len]
        words += ["--max-num-seqs", options.max_num_seqs, "--max-num-batched-tokens", options.max_num_batched_tokens]
        words += ["--num-gpu-blocks-override", options.num_blocks]
        return " ".join(map(str, words))

    def observe(self, model: factory.Model) -> RealRun:
        """Serve the load and scrape until its end."""
        return asyncio.run(self._serve(model))

    async def _serve(self, model: factory.Model) -> RealRun:
        inbox, clock = Inbox(), CpuClock()
        core, config = factory.build_engine(model, self.options, inbox, clock)
        metrics = ServerMetrics(core, model.name, config.scheduler.max_model_len)
        limits = ModelLimits(
            config.scheduler.max_model_len, config.cache.block_size, model.vocab_size, model.eos_token_ids
        )
        engine = AsyncEngine(core, inbox, model.tokenizer, limits, observer=metrics)
        engine.start()
        scrapes: list[str] = []
        try:
            load = asyncio.gather(*(_ask(engine, index, ask) for index, ask in enumerate(self.asks)))
            while not load.done():
                await asyncio.sleep(0.002)
                if clock.now() >= self.scrape_interval_s * (len(scrapes) + 1):
                    scrapes.append(metrics.render().decode())
            scrapes.append(metrics.render().decode())
            firsts = sorted(await load)
        finally:
            await engine.close()
        return RealRun(self, "".join(scrapes), firsts[len(firsts) // 2])


class RealRun(NamedTuple):
    """Scrapes of one run, and the median time to first token that its clients saw."""

    server: RealServer
    metrics: str
    p50_ttft_s: float


async def _ask(engine: AsyncEngine, index: int, ask: Ask) -> float:
    """Send a request, read it to its end; seconds to its first token."""
    while engine.now() < ask.after_s:
        await asyncio.sleep(0.002)
    prompt = [1 + (17 * index + 31 * i) % 40_000 for i in range(ask.num_prompt_tokens)]
    sampling = SamplingParams(temperature=0.0, max_tokens=ask.num_output_tokens, ignore_eos=True)
    started, first = engine.now(), None
    async for _ in engine.generate(GenerationRequest(prompt, sampling)):
        first = first or engine.now() - started
    assert first is not None
    return first
