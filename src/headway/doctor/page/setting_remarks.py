"""What each scheduler setting controls, and what a value other than the default means for this deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headway.doctor.diagnosis import SettingRead
from headway.doctor.figures import Figures

LOW_UTILIZATION = 0.7
"""Below this, the share of memory is raised before any other knob is turned."""

CONTROLS: Mapping[str, str] = {
    "num_gpu_blocks": "KV blocks in the pool: who is admitted, and who is preempted",
    "gpu_memory_utilization": "share of the GPU's memory: what weights and activations leave becomes KV blocks",
    "kv_cache_dtype": "bytes a token takes in the pool",
    "kv_cache_memory_bytes": "size of the pool, in place of the memory profile",
    "num_gpu_blocks_override": "number of blocks, in place of the memory profile",
    "block_size": "tokens in a block: the last block of each request is partly empty",
    "max_model_len": "longest request; the pool must hold at least one",
    "max_num_seqs": "seats: most requests that run in one step",
    "max_num_active_seqs": "seats that are given out, below max_num_seqs",
    "max_num_batched_tokens": "token budget of a step: decodes first, the rest is for chunks of prompts",
    "max_num_scheduled_tokens": "tokens that are scheduled, below the budget",
    "enable_chunked_prefill": "whether a prompt is cut to fit the step's budget",
    "long_prefill_token_threshold": "most tokens of one prompt in a step",
    "long_prefill_token_threshold_adaptive": "whether that bound never falls below a prompt's fair share",
    "max_num_partial_prefills": "prompts that may be part-way at once (V0)",
    "max_long_partial_prefills": "long ones among them (V0)",
    "prefill_schedule_interval": "steps from one that admits prompts to the next",
    "enable_prefix_caching": "whether equal beginnings of prompts share blocks and are computed once",
    "watermark": "share of the blocks that admission leaves free while requests run",
    "scheduler_reserve_full_isl": "whether a prompt is admitted only if all of it fits",
    "scheduling_policy": "order of the waiting queue, and who is preempted",
    "max_num_queued_reqs": "requests that may wait; more are refused",
    "max_num_queued_tokens": "tokens that may wait; more are refused",
    "async_scheduling": "whether the next step is planned while this one runs",
    "speculative_config": "draft tokens that each step verifies for every running request",
    "speculative_model": "draft model (before 0.8.3)",
    "num_speculative_tokens": "draft tokens a step (before 0.8.3)",
    "enforce_eager": "no CUDA graphs: each kernel is launched by the CPU",
    "tensor_parallel_size": "GPUs that split each layer",
    "pipeline_parallel_size": "groups of layers on different GPUs",
    "data_parallel_size": "independent engines behind one address",
    "enable_lora": "whether adapters are served",
    "max_loras": "adapters in one step: a further one waits although there are seats and blocks",
    "disable_hybrid_kv_cache_manager": "whether sliding windows are sized as full attention",
    "disable_chunked_mm_input": "whether an image is never cut by a chunk",
    "stream_interval": "tokens between two pieces of a streamed answer",
    "num_scheduler_steps": "decode steps between two decisions (V0)",
    "scheduler_delay_factor": "wait before the next prompt is admitted (V0)",
    "preemption_mode": "recompute or swap (V0)",
    "swap_space": "CPU memory for swapped blocks (V0)",
}
"""Scheduler settings in the order of the page, in a few words each. A release has only some of them."""


def remark(row: SettingRead, figures: Figures) -> str:
    """Why the value matters here; empty for a default that nothing is to be said about."""
    if row.name in _NUMERIC and (isinstance(row.value, bool) or not isinstance(row.value, int | float)):
        return ""
    rule = _REMARKS.get(row.name)
    return rule(row, figures) if rule is not None and row.value is not None else ""


_NUMERIC = frozenset(
    ("num_gpu_blocks", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
)


def _is_more(row: SettingRead) -> bool | None:
    """Whether a number is above its default; None where it is equal, or one of them is no number."""
    value, default = row.value, row.default
    numbers = isinstance(value, int | float) and isinstance(default, int | float)
    return value > default if numbers and value != default else None


def _request_tokens(figures: Figures) -> float | None:
    """Tokens of an average request, prompt and output."""
    load = figures.load
    if load.mean_prompt_tokens is None or load.mean_output_tokens is None:
        return None
    return load.mean_prompt_tokens + load.mean_output_tokens


def _blocks(row: SettingRead, figures: Figures) -> str:
    settings = figures.settings
    tokens = settings.kv_tokens or 0
    text = f"{tokens:,} tokens"
    if settings.max_model_len:
        text += f": {tokens / settings.max_model_len:.2g} requests of max_model_len"
    if each := _request_tokens(figures):
        text += f", {tokens / each:.0f} of the {each:,.0f} tokens that a request has here"
    return f"{text}."


def _utilization(row: SettingRead, figures: Figures) -> str:
    card, model = figures.settings.accelerator, figures.settings.model
    more = ""
    if card is not None and model is not None:
        each = model.kv_bytes_per_token(
            figures.settings.kv_cache_dtype or "auto", figures.settings.tensor_parallel_size
        )
        if each:
            more = f" Each 0.01 is about {0.01 * card.memory_bytes / each:,.0f} KV tokens."
    if row.value < LOW_UTILIZATION:
        return f"Below {LOW_UTILIZATION}: raise this before any other knob.{more}"
    above = _is_more(row)
    if above is None:
        return ""
    if above:
        return f"Above the default: more blocks, and less left for what the memory profile does not see.{more}"
    return f"Below the default: fewer blocks than this card could hold.{more}"


def _kv_dtype(row: SettingRead, figures: Figures) -> str:
    if str(row.value).startswith("fp8"):
        return (
            "Half the bytes of bf16, so twice the tokens; check answers, and that the attention backend is not slower."
        )
    return "" if row.is_default else "Another number format than the model's own."


def _length(row: SettingRead, figures: Figures) -> str:
    pool = figures.settings.kv_tokens
    if pool is None or not isinstance(row.value, int):
        return ""
    if pool < row.value:
        return (
            f"The pool holds {pool:,} tokens: a request of this length never fits, and waits at the head of the queue."
        )
    return f"The pool holds {pool / row.value:.2g} requests of this length."


def _seats(row: SettingRead, figures: Figures) -> str:
    parts = []
    pool, each = figures.settings.kv_tokens, _request_tokens(figures)
    if pool and each:
        held = pool / each
        first = "seats run out first" if held >= row.value else "blocks run out first"
        parts.append(f"The pool holds about {held:,.0f} requests of {each:,.0f} tokens: {first}.")
    running = figures.highest("num_running")
    if running is not None and running >= row.value:
        parts.append("All seats were taken.")
    elif running is not None and running < 0.5 * row.value:
        doubtful = figures.settings.is_default("max_num_seqs") and (figures.highest("num_waiting") or 0) >= 1
        parts.append(
            f"At most {running:.0f} ran while others waited: perhaps it is set lower where these flags do not say."
            if doubtful
            else f"At most {running:.0f} were taken: this is not what limits."
        )
    above = _is_more(row)
    if above is not None:
        parts.append(
            "More than the default: each runs slower in the larger step, and CUDA graphs take more memory."
            if above
            else "Fewer than the default: others wait although there may be blocks."
        )
    return " ".join(parts)


def _budget(row: SettingRead, figures: Figures) -> str:
    settings, parts = figures.settings, []
    above = _is_more(row)
    if above is not None:
        parts.append(
            "Above the default: a step with a full chunk is longer, everybody who decodes waits for it, and its "
            "activations take memory from the pool."
            if above
            else "Below the default: shorter gaps between tokens, more steps for each prompt."
        )
    if isinstance(settings.max_model_len, int) and row.value >= settings.max_model_len:
        parts.append("Every prompt fits in one step: nothing is chunked.")
    if settings.max_num_seqs and row.value < settings.max_num_seqs * (1 + settings.num_speculative_tokens):
        parts.append("Fewer tokens than the seats need to decode: a full house leaves no room for prompts.")
    return " ".join(parts)


def _chunking(row: SettingRead, figures: Figures) -> str:
    if row.value is False:
        return "Prompts run whole: everybody who decodes waits for them, and the budget must hold the longest."
    speculating = figures.settings.speculation is not None
    drafts = figures.settings.num_speculative_tokens
    return f"With speculation each running request takes {1 + drafts} tokens of the budget." if speculating else ""


def _caching(row: SettingRead, figures: Figures) -> str:
    rate = figures.load.prefix_hit_rate
    if row.value is False:
        return "Equal beginnings are computed again for each request."
    return f"{100 * rate:.0f} % of prompt tokens were found." if rate is not None else ""


def _eager(row: SettingRead, figures: Figures) -> str:
    return "Small models' decode steps become bound by the CPU's launches." if row.value is True else ""


def _speculation(row: SettingRead, figures: Figures) -> str:
    drafts = figures.settings.num_speculative_tokens
    text = f"{1 + drafts} rows and KV slots a step for each running request" if drafts else "Extra rows a step"
    return f"{text}: it pays while reading the weights dominates, and costs once many decode."


def _watermark(row: SettingRead, figures: Figures) -> str:
    return "" if row.is_default else "Fewer preemptions for a longer queue."


def _threshold(row: SettingRead, figures: Figures) -> str:
    return "" if row.is_default else "Short prompts pass long ones in the same step; long ones take more steps."


def _policy(row: SettingRead, figures: Figures) -> str:
    return "" if row.value == "fcfs" else "A low priority may wait for ever, and is preempted first."


def _asynchronous(row: SettingRead, figures: Figures) -> str:
    return "" if row.is_default or row.value else "The GPU waits for the CPU between two steps."


def _adapters(row: SettingRead, figures: Figures) -> str:
    facts = figures.evidence.facts
    if not facts.lora_running and not facts.lora_waiting:
        return ""
    return f"{len(facts.lora_running)} adapters ran, {len(facts.lora_waiting)} waited."


_REMARKS: Mapping[str, Callable[[SettingRead, Figures], str]] = {
    "num_gpu_blocks": _blocks,
    "gpu_memory_utilization": _utilization,
    "kv_cache_dtype": _kv_dtype,
    "max_model_len": _length,
    "max_num_seqs": _seats,
    "max_num_batched_tokens": _budget,
    "enable_chunked_prefill": _chunking,
    "enable_prefix_caching": _caching,
    "enforce_eager": _eager,
    "speculative_config": _speculation,
    "watermark": _watermark,
    "long_prefill_token_threshold": _threshold,
    "scheduling_policy": _policy,
    "async_scheduling": _asynchronous,
    "max_loras": _adapters,
}


def shown_value(value: Any) -> str:
    """A setting's value as a table shows it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shown_value(part)}" for key, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
