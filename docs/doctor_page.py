"""docs/doctor.md: how to use the doctor, with the tables that follow from the code."""

from __future__ import annotations

import click

from headway.cli.doctor import doctor
from headway.doctor.diagnosis import BOTTLENECK_KINDS
from headway.doctor.page.json_schema import field_rows
from headway.doctor.page.setting_remarks import CONTROLS
from headway.doctor.page.words import TITLES


def doctor_page(note: str) -> str:
    """The page."""
    parts = [
        "# The doctor",
        note,
        _INTRODUCTION,
        "## What it reads",
        "",
        *_option_table(),
        "",
        _READING,
        "## Bottlenecks",
        "",
        "| kind | in words |",
        "|---|---|",
        *(f"| `{kind}` | {TITLES[kind]} |" for kind in BOTTLENECK_KINDS),
        "",
        "## Scheduler settings that it reads",
        "",
        "Those that the deployment's release has, each with its effective value, the release's default, and what a",
        "value other than that means here.",
        "",
        "| setting | what it controls |",
        "|---|---|",
        *(f"| `{name}` | {controls} |" for name, controls in CONTROLS.items()),
        "",
        "## JSON",
        "",
        "`headway doctor --json`. All keys are always there; `[]` marks a list.",
        "",
        "| key | type | what it is |",
        "|---|---|---|",
        *(f"| `{key}` | {kind} | {text} |" for key, kind, text in field_rows()),
        "",
    ]
    return "\n".join(parts)


def _option_table() -> list[str]:
    rows = ["| option | what it is |", "|---|---|"]
    for parameter in doctor.params:
        if isinstance(parameter, click.Option) and parameter.help:
            flag = f"{max(parameter.opts, key=len)} {parameter.metavar or ''}".strip().replace("|", "\\|")
            rows.append(f"| `{flag}` | {parameter.help} |")
    return rows


_INTRODUCTION = """`headway doctor` says what limits a running deployment of vLLM, what to change first, and what that
change would do, simulated with the same scheduler before it is advised. It changes nothing, and a live server is only
read.

```sh
headway doctor docker-compose.yml --gpu l40s --metrics http://localhost:8000/metrics
headway doctor "vllm serve llama-3.3-70b -tp 2" --gpu h100 --bench result.json --slo ttft_p99=2s,itl_p99=100ms
headway doctor --log vllm.log --json
sh examples/sick-server/make.sh && headway doctor examples/sick-server/docker-compose.yml --gpu l40s \\
    --metrics examples/sick-server/scrapes.prom --log examples/sick-server/server.log
```

The page has, in this order: the configuration read, the bottleneck with what proves it and what would refute it,
fixes with their predicted effect and error, what not to do, what is missing, what the exact release makes of the
flags, what to read, and what to measure next. `--format` writes it for the terminal, as Markdown, as one HTML file,
or as JSON.

An assistant that is given [skills/vllm-scheduler-reader](../skills/vllm-scheduler-reader/SKILL.md) collects the
evidence, runs this, and hands on the page.

Exit codes: 0 nothing wrong was found, 1 findings (a bottleneck, a fix, or a flag that the release refuses, ignores or
breaks on), 2 the evidence cannot be read. Nothing wrong found is not nothing wrong: see what is missing.
"""

_READING = """Give whatever there is; each source fills in what the others do not tell. DEPLOYMENT is a file in any
form that `headway config` reads, or a command line in quotes. Where the running engine contradicts its flags, the
engine is believed and the page says so. Metrics of several scrapes give rates and trends; one scrape gives totals
since the start. What cannot be used (half a scrape, a counter that falls, a clock that jumps) is named under *Not
used*.

## How sure it is
- A bottleneck is a joint condition over time, with its evidence in sentences: `strong` where only that explains the
  figures, `weak` where more than one thing may.
- The simulation is fitted to the evidence first: arrivals, lengths, prefix hits, step times. If it does not reproduce
  what was seen, nothing is predicted, and the page says by how much it was off.
- A prediction compares two simulations, before and after, so that both share the model's error. ± carries the errors
  of step times, of the load and of the stretch watched to the metric ([how far off](doctor-accuracy.md)).
  Effects under 3 % are none.
- The first fix is the smallest change that reaches the objective (`--slo`), or, without one, that brings at least
  half of what the best one brings. Where requests wait or are preempted, one after which none do comes before others.
- A smaller `tensor_parallel_size` is advised, and simulated, on the same GPUs: the ones it frees carry replicas. It is
  advised where all-reduces take most of the steps under load, or where further GPUs were measured to bring nothing.

## What it refuses
- Without time to first token, time between tokens, throughput and concurrency it says which is missing, what that
  would settle, and only what can still be said.
- GPU duty cycle is no signal to scale by: a decode step that waits for memory shows 100 %.
- Under 100 tokens/s on a card of the H100's class it looks at the client first.
- `gpu_memory_utilization` below 0.7 is raised before any other knob, where memory is what lacks.
- Advice about chunked prefill looks at speculative decoding first: drafts take from the same budget.
- A flag, a fix or a speculative recipe that the exact release forbids is refused, with the alternative where one is
  known.
- It never advises what is on already, nor a value that is in effect.
"""
