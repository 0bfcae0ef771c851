"""What a plan means: warnings, what limits next, and the numbers at a workload's real lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.catalog.architecture import Attention, CompressedAttention, Mixer
from headway.catalog.defaults import newest_read, version_fact
from headway.catalog.served import served
from headway.catalog.versions import Version, outside_known, version_text
from headway.planner.lengths import LengthStats
from headway.planner.plan import Plan

_KERNEL_BLOCK = 16
_OLDEST_DEFAULTS: Version = (0, 5, 5)
"""The oldest release whose arguments were read (`source` in vllm_defaults.json); memory rules reach further back."""
NextLimit = Literal["kv_blocks", "max_num_seqs", "max_num_batched_tokens"]


@dataclass(frozen=True, slots=True)
class AtLengths:
    """How many requests of a workload's mean length run at once, and what stops more.

    `by_blocks`: as the KV blocks hold at their full length. `by_seats`: max_num_seqs. `by_budget`: as many as the token
    budget can both decode and feed with prompts in the steady state.
    """

    lengths: LengthStats
    by_blocks: float
    by_seats: int
    by_budget: float
    limit: NextLimit


def at_lengths(plan: Plan, lengths: LengthStats) -> AtLengths:
    """The plan's concurrency for requests of these lengths."""
    defaults = plan.resolved.defaults
    by_blocks = plan.concurrency_at(max(1, round(lengths.mean_prompt + lengths.mean_output)))
    by_budget = defaults.max_num_batched_tokens / (1 + lengths.mean_prompt / lengths.mean_output)
    limits: tuple[tuple[float, NextLimit], ...] = (
        (by_blocks, "kv_blocks"),
        (float(defaults.max_num_seqs), "max_num_seqs"),
        (by_budget, "max_num_batched_tokens"),
    )
    return AtLengths(lengths, by_blocks, defaults.max_num_seqs, by_budget, min(limits)[1])


def next_limit(plan: Plan) -> NextLimit:
    """What stops more requests of max_model_len from running at once."""
    return "kv_blocks" if plan.max_concurrency < plan.resolved.defaults.max_num_seqs else "max_num_seqs"


def warnings(plan: Plan) -> list[str]:
    """Things that are true of a plan and easily missed."""
    found = list(plan.deployment.model.notes)
    longest = plan.longest_admissible
    if longest is not None and plan.fits:
        found.append(
            f"The server starts, but this version never schedules a request of more than about {longest:,} tokens: it "
            f"waits for ever and holds up all behind it. Set --max-model-len {longest // 256 * 256}."
        )
    version = plan.resolved.defaults.version
    if (note := outside_known(version, min(version, _OLDEST_DEFAULTS), newest_read())) is not None:
        found.append(note)
    if version < _OLDEST_DEFAULTS:
        found.append(
            f"vLLM {version_text(version)} is older than the oldest release whose defaults are known, "
            f"{version_text(_OLDEST_DEFAULTS)}: that one's are taken."
        )
    if version[:2] == (0, 7):
        found.append("Planned for the V0 engine, this version's default; with VLLM_USE_V1=1 plan it as 0.8.0.")
    size = plan.resolved.defaults.block_size
    if size % _KERNEL_BLOCK:
        found.append(
            f"The attention kernels of CUDA take block sizes that are multiples of {_KERNEL_BLOCK}, not {size}."
        )
    card = plan.deployment.accelerator
    if card.memory_basis == "label":
        found.append(f"The memory that torch sees on {card.id} was not read anywhere; it is guessed from the label.")
    if card.is_integrated:
        found.append(
            "Memory is shared with the host here: files cached or freed while the model loads count as well, so the "
            "KV cache is known to some GiB only; read it from vLLM's start-up log."
        )
    if version_fact("sampling_depends_on_flashinfer", plan.resolved.defaults.version):
        found.append("In this version sampling takes more memory without FlashInfer than with it; the range has both.")
    if plan.binding.layout.counts_bytes:
        found.append(
            f"This version logs {plan.max_concurrency:.2f} requests of max_model_len; by the blocks that each takes "
            f"{plan.num_gpu_blocks / plan.blocks_per_request:.2f} fit at once."
        )
    if _has(plan, CompressedAttention):
        found.append("What profiling this compressed attention takes is only partly known; the range says how far.")
    if plan.deployment.model.vision_params is None:
        found.append("The vision tower's weights and its activations are not counted.")
    elif plan.deployment.model.vision_params:
        found.append("The vision tower's weights are estimated from its shape; its activations are not counted.")
    known, architecture = served(plan.deployment.model.architecture), plan.deployment.model.architecture
    if known is not None and known.knows(plan.resolved.defaults.version) is False:
        found.append(f"This version does not know {architecture}; {known.first_with} does.")
    if plan.resolved.defaults.version < (0, 9, 1) and _has_window(plan):
        found.append("This version sizes sliding-window layers as full attention.")
    return found


def _has(plan: Plan, kind: type[Mixer]) -> bool:
    return any(isinstance(mixer, kind) for mixer in plan.deployment.model.mixer_counts)


def _has_window(plan: Plan) -> bool:
    return any(isinstance(mixer, Attention) and mixer.kind == "sliding" for mixer in plan.deployment.model.mixer_counts)


def estimate_by_whole_model(plan: Plan) -> int | None:
    """The length that vLLM's start-up error prints under pipeline parallelism: the smallest rank's memory over the
    bytes of *all* layers, too low where ranks hold fewer. None without pipeline parallelism."""
    if len(plan.ranks) < 2:
        return None
    whole = plan.kv_bytes_per_token
    smallest = min(rank.available_bytes for rank in plan.ranks)
    size = plan.block_size
    return max(0, smallest) // (whole * size) * size if whole else None
