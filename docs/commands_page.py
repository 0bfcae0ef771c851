"""docs/commands.md: what all commands have in common, then each one's purpose, examples and options, from its help."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

import click

from headway.cli import _GROUPS, cli
from headway.config import EngineOptions, ServerOptions
from headway.frontends.bench_options import BenchOptions
from headway.simulation.options import DeploymentOptions
from headway.simulation.output_options import OutputOptions
from headway.simulation.workload_options import WorkloadOptions

_IN_FLAGS_PAGE = (
    EngineOptions,
    ServerOptions,
    BenchOptions,
    DeploymentOptions,
    WorkloadOptions,
    OutputOptions,
)
JSON_SHAPES = {
    "bench": ("list", "an object for each policy, with the keys of `vllm bench serve` ([all](../bench/README.md))"),
    "simulate": ("list", "as `bench`, and `error_bars`; one object where one policy runs"),
    "validate": (
        "lines",
        "an object for each run and metric: `run`, `metric`, `measured`, `predicted`, `error_pct`, …",
    ),
    "steplog": ("lines", "an object for each step, always ([step-logs.md](step-logs.md))"),
    "plan": ("object", "`schema`, `fits`, `terms`, `fixes`, … ([planner.md](planner.md))"),
    "fragmentation": ("object", "`schema`, `policies`: an object for each way of holding the cache"),
    "doctor": ("object", "`bottlenecks`, `fixes`, `must_not`, … ([doctor.md](doctor.md))"),
    "config": ("object", "`invocations`: an object for each start of vLLM; the first one's keys stand at the top too"),
    "compat": ("object", "`deployments`, likewise; with `--matrix` `pairs`, with `--features` one verdict"),
}
"""What `--json` prints, by command; a test runs each."""

_CONVENTIONS = """
`headway COMMAND --help` shows the same as this page. `headway completion bash` (or zsh, fish) makes a shell complete
commands and flags.

## What holds for all

- **Flags** that vLLM has are called and mean as there. Numbers take no unit; the unit is in the name (`--tpot-ms`) or
  in the help. Sizes of memory take one: `2GiB`, `512MB`. A switch that may be on by default has a
  `--no-` form.
- **Latencies** are those of `vllm bench serve`, in milliseconds: TTFT (time to first token), TPOT (time per output
  token after it), ITL (gap between two tokens), E2EL (from arrival to the last token). ± is the expected error of a
  prediction.
- **Mistakes** are told in one line on standard error, `headway: what is wrong. What to do.`, with exit code 2. What can
  be seen to be wrong is told before the work begins: files that cannot be written too.
- **Exit codes**: 0 fine; 1 findings (`config`, `compat`, `doctor`), or a failure of ours; 2 a mistake, evidence that
  cannot be read, or a plan that does not fit; 130 after Ctrl-C.
- **Tables** go to standard output, progress to standard error. The last line names the natural next command.
- **Python** has the same questions as calls: `from headway import simulate, plan, judge, diagnose, LLM`.

## JSON

With `--json` standard output is JSON and nothing else; tables then go to standard error. Keys are added, not changed.
The shape follows from what the command answers: *one question, one object*; *runs side by side, a list with an object
a run*; *records that come one by one, an object a line*. `bench` and `simulate` take a file too: `--json FILE`.

| command | shape | what is in it |
|---|---|---|
"""

_SIMULATION_KEYS = {
    "`gpu`, `num_gpus`, `tensor_parallel_size`, `pipeline_parallel_size`, `data_parallel_size`, `latency`, "
    "`enable_prefix_caching`, `async_scheduling`": "the deployment, as resolved",
    "`provenance`, `oracle_error`": "where step times come from, and their typical error; null if never judged",
    "`error_bars`": "relative error expected of each metric, by its key; null where nothing is known",
    "`mean_kv_usage`, `peak_kv_usage`, `mean_num_running`, `peak_num_running`, `mean_num_waiting`, "
    "`peak_num_waiting`": "over the run",
    "`saturation`": "share of the time in which a queue stood",
    "`groups`": "with `--clients`: the figures of each kind of client",
    "`num_skipped`": "requests left out as too long",
    "`capacity`": "with `--capacity`: what the deployment carries, and the replicas that the load needs",
    "`simulation_wall_s`": "how long the simulation itself took",
}


def commands_page(note: str) -> str:
    """The page."""
    parts = ["# Commands", note + _CONVENTIONS.rstrip()]
    parts += [f"| `{name}` | {shape} | {text} |" for name, (shape, text) in JSON_SHAPES.items()]
    parts += ["", "Keys of `simulate` beside those of `bench` (`request_rate` is null in a closed loop):", ""]
    parts += ["| key | meaning |", "|---|---|", *(f"| {keys} | {text} |" for keys, text in _SIMULATION_KEYS.items())]
    with click.Context(cli, info_name="headway") as context:
        for group, purposes in _GROUPS.items():
            parts += ["", f"## {group}"]
            for name, purpose in purposes.items():
                command = cli.get_command(context, name)
                assert command is not None
                parts += ["", f"### `headway {name}`: {purpose}", "", *_section(name, command)]
    return "\n".join([*parts, ""])


def _section(name: str, command: click.Command) -> Iterator[str]:
    text, _, rest = inspect.cleandoc(command.help or "").partition("\b\n")
    yield text.strip()
    sayings = [line for line in rest.splitlines() if line and not line.startswith(" ") and not line.startswith("Exam")]
    if sayings:
        yield ""
        yield from sayings
    examples = [line.removeprefix("    ") for line in rest.splitlines() if line.startswith("    ")]
    if examples:
        yield from ("", "```sh", *examples, "```")
    if isinstance(command, click.Group):
        for part, inner in sorted(command.commands.items()):
            yield from ("", f"`headway {name} {part}`: {inspect.cleandoc(inner.help or '')}")
    yield from _options(command)


def _options(command: click.Command) -> Iterator[str]:
    own = [item for item in command.params if isinstance(item, click.Option) and not _is_in_flags_page(item)]
    if own:
        yield from ("", "| option | default | what it does |", "|---|---|---|")
    for option in own:
        forms = ", ".join(f"`{form}`" for form in (*option.opts, *option.secondary_opts))
        if option.metavar:
            forms = f"{forms} {option.metavar}".replace("|", "\\|")
        yield f"| {forms} | {_default(option)} | {option.help} |"
    if len(own) < sum(isinstance(item, click.Option) for item in command.params):
        yield from ("", "Further options are in [flags.md](flags.md).")


def _is_in_flags_page(option: click.Option) -> bool:
    """Whether it was made from a field of one of the dataclasses, and not written in the command itself."""
    fields = [field for cls in _IN_FLAGS_PAGE for field in dataclasses.fields(cls) if field.name == option.name]
    return any((option.help or "").startswith(field.metadata["help"]) for field in fields)


def _default(option: click.Option) -> str:
    return f"`{option.default}`" if option.show_default and option.default not in (None, False, "") else ""
