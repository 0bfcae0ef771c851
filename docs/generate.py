"""Writes the pages of docs/ that are made from the code. `make docs` runs it; a test fails when a page is stale."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.cli.options import flag_name
from headway.config import EngineOptions, ServerOptions
from headway.frontends.bench_options import BenchOptions
from headway.simulation.options import DeploymentOptions
from headway.simulation.output_options import OutputOptions
from headway.simulation.workload_options import WorkloadOptions

DOCS = Path(__file__).parent
_NOTE = "<!-- Made by docs/generate.py from the code; do not edit. `make docs` rewrites it. -->\n"


def flags_page() -> str:
    """docs/flags.md: every setting of the engine and the server, from the config dataclasses."""
    parts = [
        "# Flags",
        _NOTE,
        "Scheduler and cache flags have vLLM's names and meaning. `headway serve` and `headway bench` take the "
        "engine's; the",
        "former also takes the server's. A switch has a `--no-` form.",
        "",
        "## Engine",
        "",
        *_option_table(EngineOptions),
        "",
        "## Server",
        "",
        *_option_table(ServerOptions),
        "",
        "## Bench",
        "",
        *_option_table(BenchOptions),
        "",
        "## Simulate",
        "",
        "The deployment (also taken by `headway serve --executor sim`), the workload, and what is written.",
        "",
        *_option_table(DeploymentOptions),
        "",
        *_option_table(WorkloadOptions),
        "",
        *_option_table(OutputOptions),
        "",
    ]
    return "\n".join(parts)


def _option_table(cls: type) -> list[str]:
    hints = typing.get_type_hints(cls)
    rows = ["| flag | type | default | what it does |", "|---|---|---|---|"]
    for field in dataclasses.fields(cls):
        default = "" if field.default is None else f"`{field.default}`"
        choices = field.metadata["choices"]
        kind = ", ".join(f"`{choice}`" for choice in choices) or _type_name(hints[field.name], field.metadata["unit"])
        rows.append(f"| `--{flag_name(field)}` | {kind} | {default} | {field.metadata['help']} |")
    return rows


def _type_name(hint: Any, unit: str) -> str:
    names = [arg.__name__ for arg in typing.get_args(hint) if arg is not type(None)] or [hint.__name__]
    if isinstance(hint, types.UnionType):
        assert len(names) == 1
    words = {"int": "integer", "float": "number", "str": "text", "bool": "switch"}
    return words[names[0]] + (f", {unit}" if unit else "")


def scheduler_page() -> str:
    """docs/scheduler-vs-vllm.md: what the scheduler has in common with vLLM's, and what proves it."""
    return str(_neighbour("scheduler_page").scheduler_page(_NOTE))


def doctor_page() -> str:
    """docs/doctor.md: how to use the doctor; options, kinds, settings and JSON keys are the code's."""
    return str(_neighbour("doctor_page").doctor_page(_NOTE))


def commands_page() -> str:
    """docs/commands.md: conventions, and every sub-command as its help says it."""
    return str(_neighbour("commands_page").commands_page(_NOTE))


def _neighbour(name: str) -> types.ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"headway_docs_{name}", DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "doctor.md": doctor_page,
    "flags.md": flags_page,
    "scheduler-vs-vllm.md": scheduler_page,
}


def stale_pages() -> list[str]:
    """Names of generated pages whose file differs from what the code says."""
    return [
        name
        for name, make in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != make()
    ]


def main() -> None:
    """Write every page; with --check only say which are stale."""
    if "--check" in sys.argv[1:]:
        stale = stale_pages()
        sys.exit(f"Stale: {', '.join(stale)}. Run `make docs`." if stale else 0)
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
