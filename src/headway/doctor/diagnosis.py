"""What the doctor says. `headway doctor --json` writes these, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

BottleneckKind = Literal[
    "kv_starvation",
    "waiting_queue_stall",
    "prefill_compute_bound",
    "long_prompt_hol",
    "chunk_missized",
    "decode_compute_bound",
    "hbm_bound",
    "impossible_request_at_queue_head",
    "lora_slots",
    "engine_stall_other",
    "kv_leak",
    "runaway_generation",
    "offered_load_too_high",
    "client_bound",
    "spec_decode_overhead",
    "cpu_launch_bound",
    "none_idle",
    "none",
]
BOTTLENECK_KINDS: tuple[str, ...] = get_args(BottleneckKind)
Confidence = Literal["strong", "medium", "weak"]


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """One bottleneck: whole sentences with numbers that prove it, and what would refute it.

    Args:
        figures: the numbers that the sentences use, by name, such as `predicted_itl_s` or `kv_tokens_about`.
        discriminate: where two explanations fit, how to tell them apart.
    """

    kind: BottleneckKind
    confidence: Confidence
    evidence: tuple[str, ...]
    refuted_by: tuple[str, ...]
    figures: Mapping[str, float | str | bool] = field(default_factory=dict)
    discriminate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Predicted:
    """One metric before and after a fix, simulated; `low` and `high` bound the value after.

    `metric` is a summary key such as `p99_ttft_ms`. `before` is simulated too, so that both share the model's error.
    """

    metric: str
    before: float
    after: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Fix:
    """One change of one setting. `predicted` is empty where it was not simulated; `note` then says why.

    Args:
        setting: in vLLM's spelling; `replicas`, `client`, `request_rate` and `max_tokens` are those of no flag.
        addresses: the bottlenecks that it is for.
        side_effects: what gets worse, with numbers where they are known.
        helps: whether the simulation finds it of use; None where it was not simulated.
    """

    setting: str
    from_value: Any
    to_value: Any
    reason: str
    addresses: tuple[BottleneckKind, ...] = ()
    predicted: tuple[Predicted, ...] = ()
    side_effects: tuple[str, ...] = ()
    note: str = ""
    helps: bool | None = None


@dataclass(frozen=True, slots=True)
class MustNot:
    """A change that somebody may well think of, and why not to make it."""

    setting: str
    reason: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A figure that is not in the evidence, what it would settle, and how to get it."""

    figure: str
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class SettingRead:
    """One scheduler setting of the deployment as it is in effect.

    Args:
        default: what it would be if it were not written; None may also mean that this depends on something unknown,
            which `default_reason` then says.
        remark: why a value other than the default matters, with this deployment's numbers.
        origin: where the value comes from: `written`, `default`, `forced` by the release, `reported` by the engine,
            `planned`, or `unknown`.
    """

    name: str
    value: Any
    default: Any
    controls: str
    remark: str = ""
    origin: str = "default"
    default_reason: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the release would choose this value by itself, or nothing is known."""
        return self.value is None or self.origin in ("default", "planned") or self.value == self.default


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Whether the fitted simulation reproduces what was observed, by summary key."""

    observed: Mapping[str, float]
    simulated: Mapping[str, float]
    residual: float | None
    """Mean relative error."""
    accepted: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer, in the order of the report.

    `fixes` are in the order in which to try them: the smallest change that helps comes first.
    """

    subject: str = ""
    """What was examined, in a line: model, hardware, release, and the evidence."""
    configuration: tuple[SettingRead, ...] = ()
    bottlenecks: tuple[Bottleneck, ...] = ()
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    """Bottleneck kinds and settings that the evidence excludes, with the reason."""
    fixes: tuple[Fix, ...] = ()
    must_not: tuple[MustNot, ...] = ()
    missing: tuple[Missing, ...] = ()
    compat: tuple[str, ...] = ()
    model_check: ModelCheck | None = None
    read_next: tuple[tuple[str, str], ...] = ()
    """(title, where to find it)."""
    measure_next: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    """What was read from the evidence, by name and unit, such as `p50_ttft_ms`."""
    unusable: tuple[str, ...] = ()
    is_clean: bool = False
    """Nothing wrong was found, in what runs or in the flags; what is missing may still hide something."""
