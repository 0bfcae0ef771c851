"""Deployments with one fault each, and healthy ones. Faults are in the deployment or its load, never in the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.catalog.accelerators import GIB
from headway.doctor.diagnosis import BottleneckKind
from headway.executors.simulated.oracle import DecodePricer, ErrorBar, LatencyOracle, Part, StepShape, StepTime
from headway.simulation.options import DeploymentOptions
from headway.simulation.server_log import log_prefix, startup_lines
from headway.status_log import StatusFigures, status_line
from tests.doctor.planted.server import Load, Server, evenly, poisson, sharing, together


@dataclass(frozen=True, slots=True)
class Planted:
    """A server, what is wrong with it, and what its operator asked of the doctor.

    Args:
        metric: the summary key that the fault spoils.
        improves: what share of it is left at most, or by what share it grows at least, once the first fix is made.
        foretold: the predicted key that must get better; default: `metric`. Requests that wait for ever are in no
            latency, so that theirs cannot be foretold.
        bounds: the operator's objectives.
    """

    server: Server
    kind: BottleneckKind
    metric: str = "p99_ttft_ms"
    improves: float = 0.5
    foretold: str = ""
    bounds: Mapping[str, float] = field(default_factory=dict)
    goal: str = "latency"


def _llama(gpu: str = "l40s", **changes: object) -> DeploymentOptions:
    return replace(DeploymentOptions(model="llama-3.1-8b", gpu=gpu, max_model_len=16384), **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Slower:
    """An oracle whose machine takes longer than modelled: a share of each step, and some host time."""

    inner: LatencyOracle
    factor: float = 1.2
    host_s: float = 1e-3

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return self.inner.provenance

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        time = self.inner.step_time(shape)
        return time._replace(device_s=time.device_s * self.factor, host_s=time.host_s + self.host_s)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        price, factor = self.inner.decode_pricer(num_decodes), self.factor
        return lambda num_context_tokens: price(num_context_tokens) * factor

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self.inner.host_time(num_tokens, num_requests) + self.host_s

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        return self.inner.explain(shape)

    def error_bar(self) -> ErrorBar | None:
        """See `LatencyOracle`."""
        return self.inner.error_bar()


@dataclass(frozen=True, slots=True)
class Stalling(Slower):
    """An oracle whose machine hangs for a while, again and again: what a collective or a compiler does.

    Args:
        every: steps from one stall to the next.
    """

    factor: float = 1.0
    host_s: float = 0.0
    every: int = 6000
    stall_s: float = 45.0
    _steps: list[int] = field(default_factory=lambda: [0])

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        self._steps[0] += 1
        time = self.inner.step_time(shape)
        return time._replace(device_s=time.device_s + self.stall_s) if self._steps[0] % self.every == 0 else time


FAULTS: dict[str, Planted] = {
    "pool_too_small": Planted(
        Server(_llama(gpu_memory_utilization=0.45), Load(poisson(2.5, 90, (600, 1400), (300, 900)))),
        "kv_starvation",
    ),
    "one_long_hog": Planted(
        Server(
            _llama(max_model_len=131072, gpu_memory_utilization=0.8),
            Load(together(evenly(1, 0, 120_000, 8000), poisson(0.1, 150, (40_000, 44_000), (50, 100), start_s=30))),
        ),
        "kv_starvation",
        metric="p50_ttft_ms",
    ),
    "pool_set_by_hand": Planted(
        Server(_llama("h100", num_gpu_blocks_override=2500), Load(poisson(5, 80, (600, 1400), (300, 900)))),
        "kv_starvation",
    ),
    "full_at_the_door": Planted(
        Server(_llama(gpu_memory_utilization=0.5), Load(poisson(0.45, 200, (9000, 11_000), (250, 350)))),
        "kv_starvation",
    ),
    "too_few_seats": Planted(
        Server(_llama("h100", max_num_seqs=8), Load(poisson(6, 60, (300, 700), (200, 400)))), "waiting_queue_stall"
    ),
    "prompts_beyond_prefill": Planted(
        Server(_llama(max_num_batched_tokens=8192), Load(poisson(2.6, 100, (5500, 6500), (2, 2)))),
        "prefill_compute_bound",
    ),
    "chunk_too_large": Planted(
        Server(
            _llama(max_num_batched_tokens=16384, max_model_len=32768),
            Load(
                together(
                    poisson(0.8, 180, (100, 300), (100, 300)), poisson(0.3, 180, (15_000, 16_000), (20, 40), seed=2)
                )
            ),
        ),
        "chunk_missized",
        metric="p99_itl_ms",
        bounds={"p99_itl_ms": 400.0},
    ),
    "chunk_too_small": Planted(
        Server(_llama("h100", max_num_batched_tokens=128), Load(poisson(9, 50, (1800, 2200), (30, 60)))),
        "chunk_missized",
    ),
    "behind_a_long_prompt": Planted(
        Server(
            _llama(max_model_len=131072),
            Load(together(poisson(2, 230, (200, 400), (60, 120)), evenly(3, 75, 100_000, 50, start_s=10))),
        ),
        "long_prompt_hol",
    ),
    "more_than_it_can_carry": Planted(
        Server(_llama("a100"), Load(poisson(30, 40, (300, 700), (300, 500)))),
        "offered_load_too_high",
    ),
    "read_of_the_weights": Planted(
        Server(
            DeploymentOptions(model="llama-3.3-70b", gpu="h100", tensor_parallel_size=4, max_model_len=16384),
            Load(poisson(0.5, 120, (500, 1500), (200, 400))),
        ),
        "hbm_bound",
        metric="mean_itl_ms",
        improves=0.75,
        bounds={"mean_itl_ms": 12.0},
    ),
    "drafts_refused": Planted(
        Server(
            _llama("h100", speculative_config='{"method": "ngram", "num_speculative_tokens": 5}', acceptance_rate=0.05),
            Load(poisson(9, 40, (300, 700), (200, 400))),
        ),
        "spec_decode_overhead",
        metric="mean_tpot_ms",
        improves=0.95,
    ),
    "without_graphs": Planted(
        Server(
            DeploymentOptions(model="qwen2.5-0.5b", gpu="h100", enforce_eager=True),
            Load(poisson(4, 50, (200, 400), (200, 400))),
        ),
        "cpu_launch_bound",
        metric="mean_itl_ms",
    ),
    "client_too_slow": Planted(
        Server(_llama("h100"), Load(evenly(1200, 0, 500, 300), concurrency=4), scrape_interval_s=2.0),
        "client_bound",
        metric="output_throughput",
        goal="throughput",
    ),
    "prompts_computed_again": Planted(
        Server(
            _llama(enable_prefix_caching=False),
            Load(sharing(poisson(2.2, 100, (5500, 6500), (20, 40)), 5120)),
        ),
        "prefill_compute_bound",
    ),
    "split_over_slow_links": Planted(
        Server(
            _llama(tensor_parallel_size=4, max_model_len=8192, max_num_batched_tokens=8192),
            Load(poisson(4, 60, (5500, 6500), (20, 40))),
        ),
        "prefill_compute_bound",
    ),
    "drafts_at_a_large_batch": Planted(
        Server(
            _llama("h100", speculative_config='{"method": "ngram", "num_speculative_tokens": 5}', acceptance_rate=0.3),
            Load(poisson(25, 30, (300, 700), (300, 500))),
        ),
        "spec_decode_overhead",
        metric="mean_tpot_ms",
        improves=0.9,
    ),
    "small_budget_offline": Planted(
        Server(_llama("h100", max_num_batched_tokens=256), Load(evenly(600, 0, 2000, 50), concurrency=200)),
        "chunk_missized",
        metric="output_throughput",
        improves=0.8,
        goal="throughput",
    ),
    "nobody_says_stop": Planted(
        Server(
            _llama(max_model_len=8192, gpu_memory_utilization=0.75), Load(poisson(0.3, 300, (200, 600), (7500, 7500)))
        ),
        "runaway_generation",
        foretold="output_throughput",
    ),
}
"""Faults that a change of the deployment, or of its clients, removes."""

STALLS = Planted(
    Server(
        _llama("h100"),
        Load(poisson(1.5, 200, (300, 700), (200, 400))),
        disturb=Stalling,
        is_steady=False,
    ),
    "engine_stall_other",
)
HEALTHY: dict[str, Server] = {
    "light": Server(_llama("h100"), Load(poisson(3, 100, (300, 700), (200, 400)))),
    "busy": Server(_llama("h100"), Load(poisson(16, 60, (300, 700), (200, 400)))),
    "well_filled": Server(_llama(), Load(poisson(1.5, 200, (1000, 3000), (300, 600)))),
}
IDLE = Server(_llama(), Load(evenly(4, 60, 100, 50)))


def unschedulable(options: DeploymentOptions, minutes: int = 4) -> str:
    """The log of a server whose first waiting request can never be scheduled: it runs, and one more waits each minute.

    Releases from 0.19.0 to before 0.20.2 let such requests in; this scheduler refuses them at the door, so that the
    lines are written, not simulated.
    """
    lines = startup_lines(options.resolve())
    for minute in range(1, minutes + 1):
        lines.append(status_line(log_prefix(60.0 * minute), 0, StatusFigures(0.0, 0.0, 0, minute, 0.0, 0.0)))
    return "\n".join(lines) + "\n"


def refused_start(options: DeploymentOptions) -> str:
    """The log of a server that does not start, because one request of max_model_len has no room."""
    resolved = options.resolve()
    plan = resolved.plan
    assert plan is not None and not plan.fits
    length, each = plan.resolved.max_model_len, plan.kv_bytes_per_token
    kept = [line for line in startup_lines(resolved) if "KV cache size" not in line and "concurrency" not in line]
    error = (
        f"ValueError: To serve at least one request with the models's max seq len ({length}), "
        f"({length * each / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({plan.available_kv_cache_bytes / GIB:.2f} GiB). Based on the available memory, the estimated maximum model "
        f"length is {plan.max_model_len_that_fits}. Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine."
    )
    return "\n".join([*kept, f"(EngineCore pid=2) {error}"]) + "\n"
