"""A plan as data (`plan --json`) and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.planner.advice import AtLengths, estimate_by_whole_model, next_limit, warnings
from headway.planner.budget import Term
from headway.planner.explain_log import ComparedTerm
from headway.planner.fixes import Fix, NoHelp
from headway.planner.plan import Plan
from headway.planner.token_budget import BudgetAdvice
from headway.report.tables import new_table

GIB = 2**30
SCHEMA = "headway.plan/1"


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """A plan and what follows from it.

    Args:
        fixes: single changes that make it fit; `no_help` those that do not. Empty where it fits.
        gains: single changes that give more KV tokens, where it fits.
        lengths: the plan at the requests' own lengths, and `advice` the token budget for them, where they are known.
    """

    plan: Plan
    fixes: Sequence[Fix]
    no_help: Sequence[NoHelp]
    gains: Sequence[Fix]
    lengths: AtLengths | None = None
    advice: BudgetAdvice | None = None


def plan_as_dict(answer: PlanAnswer) -> dict[str, Any]:
    """The machine-readable plan; keys are stable within a schema version (see docs/planner.md)."""
    plan, lengths, advice = answer.plan, answer.lengths, answer.advice
    document = {
        **_capacity(plan),
        "terms": [_term(term) for term in plan.terms],
        "ranks": [
            {
                "rank": rank.rank,
                "num_layers": rank.num_layers,
                "available_kv_cache_bytes": rank.available_bytes,
                "num_gpu_blocks": rank.num_blocks(),
            }
            for rank in plan.ranks
        ],
        "settings": _settings(plan),
        "fixes": [_fix(fix) for fix in answer.fixes],
        "cannot_help": [asdict(item) for item in answer.no_help],
        "gains": [_fix(fix) for fix in answer.gains],
        "next_limit": next_limit(plan) if lengths is None else lengths.limit,
        "warnings": warnings(plan),
    }
    if lengths is not None:
        document["at_lengths"] = asdict(lengths)
    if advice is not None:
        document["budget"] = {
            "provenance": advice.provenance,
            "reason": advice.reason,
            "recommended": asdict(advice.recommended),
            "curve": [asdict(point) for point in advice.points],
        }
    return document


def _capacity(plan: Plan) -> dict[str, Any]:
    deployment, tokens = plan.deployment, plan.kv_cache_tokens
    return {
        "schema": SCHEMA,
        "model": deployment.model.id,
        "accelerator": deployment.accelerator.id,
        "num_gpus": deployment.num_gpus,
        "engine_version": deployment.engine_version,
        "fits": plan.fits,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_bytes_per_token_of_model": plan.kv_bytes_per_token_of_model,
        "available_kv_cache_bytes": plan.available_kv_cache_bytes,
        "kv_cache_tokens": {"value": tokens.likely, "low": tokens.low, "high": tokens.high},
        "num_gpu_blocks": plan.num_gpu_blocks,
        "block_size": plan.block_size,
        "blocks_per_request": plan.blocks_per_request,
        "token_blocks_per_request": plan.token_blocks_per_request,
        "max_concurrency": round(plan.max_concurrency, 3),
        "max_model_len_that_fits": plan.max_model_len_that_fits,
        "longest_admissible": plan.longest_admissible,
        "shortfall_bytes": plan.shortfall_bytes,
        "binding_rank": plan.binding_rank,
    }


def _settings(plan: Plan) -> dict[str, Any]:
    defaults = plan.resolved.defaults
    return {
        "max_model_len": plan.resolved.max_model_len,
        "max_num_seqs": defaults.max_num_seqs,
        "max_num_batched_tokens": defaults.max_num_batched_tokens,
        "gpu_memory_utilization": defaults.gpu_memory_utilization,
        "enable_chunked_prefill": defaults.enable_chunked_prefill,
        "enable_prefix_caching": defaults.enable_prefix_caching,
        "reasons": dict(defaults.reasons),
    }


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "bytes": term.num_bytes,
        "source": term.source,
        "low": term.low,
        "high": term.high,
        "counted": term.counted,
    }


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "setting": fix.setting,
        "from": fix.current,
        "to": fix.value,
        "break_even": fix.break_even,
        "order": fix.order,
        "kv_cache_tokens": fix.kv_cache_tokens,
        "note": fix.note,
    }


def print_plan(console: Console, answer: PlanAnswer) -> None:
    """The plan for people."""
    plan, advice = answer.plan, answer.advice
    console.print(_headline(plan))
    console.print(_terms_table(plan))
    console.print(_capacity_table(plan, answer.lengths))
    if answer.fixes or answer.no_help:
        console.print(_fixes_table("Changes that make it fit, each alone", answer.fixes))
        for item in answer.no_help:
            console.print(Text(f"  no help: {item.setting}: {item.reason}", style="dim"))
    elif answer.gains:
        console.print(_fixes_table("More KV tokens, each alone", answer.gains))
    if advice is not None:
        console.print(budget_table(advice))
        console.print(f"{advice.reason} (step times: {advice.provenance})")
    for warning in warnings(plan):
        console.print(Text(f"note: {warning}", style="yellow"))


def _headline(plan: Plan) -> Text:
    deployment = plan.deployment
    cards = " + ".join(card.id for card in deployment.rank_accelerators) or deployment.accelerator.id
    where = f"{deployment.num_gpus} × {cards}, vLLM {deployment.engine_version}"
    length = plan.resolved.max_model_len
    if plan.fits:
        return Text(f"{deployment.model.id} fits on {where}: {plan.kv_cache_tokens.likely:,} KV tokens.", style="bold")
    return Text(
        f"{deployment.model.id} does not fit on {where}: one request of {length:,} tokens is "
        f"{plan.shortfall_bytes / GIB:.2f} GiB short.",
        style="bold red",
    )


def _terms_table(plan: Plan) -> RenderableType:
    rank = f", pipeline rank {plan.binding_rank}" if len(plan.ranks) > 1 else ""
    table, shown = _titled(f"Memory of one GPU{rank}, GiB")
    for name in ("", "GiB", "range", "from"):
        table.add_column(name, justify="right" if name in ("GiB", "range") else "left")
    for term in plan.terms:
        size = f"{term.num_bytes / GIB:.2f}"
        table.add_row(
            term.name if term.name == "requested" else f"less {term.name}" if term.counted else f"({term.name})",
            size if term.counted else f"({size})",
            f"{term.low / GIB:.2f} to {term.high / GIB:.2f}",
            Text(term.source, style="dim"),
        )
    binding = plan.binding
    table.add_row(
        "KV cache",
        Text(f"{binding.available_bytes / GIB:.2f}", style="bold"),
        f"{binding.available_low / GIB:.2f} to {binding.available_high / GIB:.2f}",
        Text("given" if plan.deployment.kv_cache_memory_bytes is not None else "what is left", style="dim"),
    )
    return shown


def _capacity_table(plan: Plan, lengths: AtLengths | None) -> RenderableType:
    tokens, length = plan.kv_cache_tokens, plan.resolved.max_model_len
    table, shown = _titled("KV cache", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="dim")
    table.add_row("tokens", f"{tokens.likely:,}", f"{tokens.low:,} to {tokens.high:,}")
    table.add_row("blocks", f"{plan.num_gpu_blocks:,}", f"of {plan.block_size} tokens")
    of_model = plan.kv_bytes_per_token_of_model
    shared = "" if of_model == plan.kv_bytes_per_token else f", {of_model:,} of the model"
    table.add_row("bytes a token", f"{plan.kv_bytes_per_token:,}", f"on one GPU{shared}")
    others = plan.blocks_per_request - plan.token_blocks_per_request
    split = f" ({plan.token_blocks_per_request:,} for all its tokens)" if others else ""
    each = f"each {plan.blocks_per_request:,} blocks{split}"
    table.add_row(f"requests of {length:,}", f"{plan.max_concurrency:.2f}", each)
    whole = estimate_by_whole_model(plan)
    if whole is not None:
        table.add_row("longest request", f"{plan.max_model_len_that_fits:,}", f"vLLM's error would say {whole:,}")
    if lengths is not None:
        mean = lengths.lengths.mean_prompt + lengths.lengths.mean_output
        table.add_row(f"requests of {mean:,.0f} (mean)", f"{lengths.by_blocks:.1f}", f"next limit: {lengths.limit}")
    else:
        table.add_row("seats", f"{plan.resolved.defaults.max_num_seqs:,}", f"next limit: {next_limit(plan)}")
    return shown


def _fixes_table(title: str, fixes: Sequence[Fix]) -> RenderableType:
    if not fixes:
        return Text(f"{title}: none", style="bold")
    table, shown = _titled(title)
    for name in ("", "setting", "from", "to", "just fits at", "KV tokens then", "cost"):
        table.add_column(name)
    for fix in fixes:
        break_even = "" if fix.break_even in (None, fix.value) else str(fix.break_even)
        table.add_row(
            str(fix.order),
            fix.setting,
            str(fix.current),
            str(fix.value),
            break_even,
            f"{fix.kv_cache_tokens:,}",
            Text(fix.note, style="dim"),
        )
    return shown


def budget_table(advice: BudgetAdvice) -> RenderableType:
    """The curve over token budgets; the recommended one is marked."""
    table, shown = _titled("Token budget: what a busy server does with it")
    for name in ("", "budget", "seats", "running", "blocks", "step ms", "with chunk ms", "TPOT ms", "TTFT ms", "tok/s"):
        table.add_column(name, justify="right")
    for point in advice.points:
        chosen = point is advice.recommended
        table.add_row(
            "→" if chosen else "" if point.meets_targets else "×",
            *(
                f"{value:,}"
                for value in (
                    point.max_num_batched_tokens,
                    point.max_num_seqs,
                    point.num_running,
                    point.num_gpu_blocks,
                )
            ),
            f"{point.step_ms:.1f}",
            f"{point.chunk_step_ms:.1f}",
            f"{point.tpot_ms:.1f}",
            f"{point.ttft_ms:,.0f}",
            f"{point.output_tokens_per_s:,.0f}",
            style="bold" if chosen else "",
        )
    return shown


def log_table(terms: Sequence[ComparedTerm]) -> RenderableType:
    """A start-up log beside the plan."""
    table, shown = _titled("Start-up log beside the plan")
    for name in ("", "logged", "planned", "unit", "what it is"):
        table.add_column(name, justify="right" if name in ("logged", "planned") else "left")
    for term in terms:
        table.add_row(
            term.name, _figure(term.logged), _figure(term.planned), term.unit, Text(term.explanation, style="dim")
        )
    return shown


def _titled(title: str, *, show_header: bool = True) -> tuple[Table, RenderableType]:
    """An empty table, and the same below its title."""
    table = new_table(show_header=show_header)
    return table, Group(Text(title, style="bold"), table)


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
