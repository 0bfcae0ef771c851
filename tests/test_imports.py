"""What each package may import, read from the source; and what importing headway loads, seen in a fresh process.

`ALLOWED` is the table that docs/architecture.md quotes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headway.cli import _COMMANDS

ALLOWED: dict[str, set[str]] = {
    "headway": set(),
    "__main__": {"cli"},
    "errors": set(),
    "extras": {"errors"},
    "config": {"errors"},
    "core": {"config", "errors"},
    "executors": {"core"},
    "executors.simulated": {"catalog", "config", "core", "errors", "executors", "extras"},
    "executors.torch": {"config", "core", "errors", "executors"},
    "text": {"errors", "extras"},
    "workload": {"errors"},
    "report": {"errors"},
    "catalog": {"errors"},
    "deployment": {"catalog", "config", "errors"},
    "compat": {"catalog", "config", "deployment", "errors", "planner"},
    "metrics": {"config", "core"},
    "status_log": {"metrics"},
    "simulation": {
        "catalog",
        "config",
        "core",
        "errors",
        "executors.simulated",
        "metrics",
        "planner",
        "report",
        "status_log",
        "workload",
    },
    "accuracy": {
        "catalog",
        "core",
        "errors",
        "evidence",
        "executors",
        "executors.simulated",
        "report",
        "simulation",
        "workload",
    },
    "planner": {"catalog", "config", "core", "errors", "executors.simulated", "report", "workload"},
    "evidence": {"errors"},
    "doctor": {
        "accuracy",
        "catalog",
        "compat",
        "config",
        "core",
        "deployment",
        "errors",
        "evidence",
        "executors.simulated",
        "planner",
        "report",
        "simulation",
        "workload",
    },
    "frontends": {"config", "core", "errors", "executors", "factory", "report", "text", "workload"},
    "frontends.server": {"config", "core", "errors", "frontends", "metrics", "status_log", "text"},
    "factory": {"config", "core", "errors", "extras", "executors", "executors.simulated", "executors.torch", "text"},
    "api": {"compat", "deployment", "doctor", "errors", "report", "simulation"},
    "cli": {
        "accuracy",
        "catalog",
        "compat",
        "config",
        "core",
        "deployment",
        "doctor",
        "errors",
        "extras",
        "evidence",
        "executors.simulated",
        "factory",
        "frontends",
        "frontends.server",
        "planner",
        "report",
        "simulation",
        "text",
        "workload",
    },
}
"""Packages of headway that a package may import at run time, besides itself."""

ALLOWED_FOR_TYPES: dict[str, set[str]] = {
    "core": {"executors"},
    "headway": {"api", "config", "core", "errors", "frontends", "planner"},
}
"""Further packages that it may import under TYPE_CHECKING, where nothing is loaded."""

AT_IMPORT_OF_COMMANDS = (
    r"headway\.(cli|config|errors|extras|(frontends|simulation)\.(\w+_)?options|report\.words)(\.|$)"
)
"""What a sub-command's own module may import before it runs: the dataclasses that its options are made from, words."""

THIRD_PARTY: dict[str, set[str]] = {
    "cli": {"click", "rich"},
    "deployment": {"yaml"},
    "doctor": {"rich"},
    "executors.torch": {"gguf", "numpy", "safetensors", "torch"},
    "frontends": {"rich"},
    "frontends.server": {"msgspec", "prometheus_client", "starlette", "uvicorn"},
    "planner": {"rich"},
    "report": {"matplotlib", "rich"},
    "text": {"gguf", "jinja2", "tokenizers"},
}
"""Third-party packages that a package may import; nothing for those not named."""

FORBIDDEN_IN_CORE = {"random", "secrets", "datetime", "asyncio"}
"""Standard modules whose use would make a schedule depend on more than its inputs."""

_SOURCE = Path(__file__).parents[1] / "src" / "headway"


class Import(NamedTuple):
    """One import statement's target."""

    importer: str
    file: str
    line: int
    module: str
    for_types_only: bool
    at_module_level: bool


def package_of(dotted: str) -> str:
    """The package of the table that a module below headway belongs to."""
    parts = dotted.split(".")
    return next(name for name in (".".join(parts[:2]), parts[0]) if name in ALLOWED or name == parts[0])


def _imports_in(tree: ast.AST, for_types: bool = False, top: bool = True) -> Iterator[tuple[ast.stmt, bool, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, for_types, top
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports_in(node, True, top)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_in(node, for_types, top and not is_function)


def _all_imports() -> list[Import]:
    found = []
    for path in sorted(_SOURCE.rglob("*.py")):
        relative = path.relative_to(_SOURCE)
        importer = package_of(".".join(relative.with_suffix("").parts)) if relative.name != "__init__.py" else None
        importer = importer or package_of(".".join(relative.parent.parts) or "headway")
        for node, for_types, top in _imports_in(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{relative}: imports are absolute"
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            else:
                assert isinstance(node, ast.ImportFrom) and node.module is not None
                split = node.module.count(".") < 2 and node.module.startswith("headway")
                modules = [f"{node.module}.{alias.name}" for alias in node.names] if split else [node.module]
            found += [Import(importer, str(relative), node.lineno, module, for_types, top) for module in modules]
    return found


IMPORTS = _all_imports()


def _targets() -> Iterator[tuple[Import, str]]:
    """Imports of headway's own packages, and the package meant."""
    for item in IMPORTS:
        if item.module.startswith("headway."):
            dotted = item.module.removeprefix("headway.")
            if dotted != "__version__":
                yield item, package_of(dotted)


def test_the_table_names_every_package() -> None:
    packages = {item.importer for item in IMPORTS if item.importer != "headway"}
    assert packages <= set(ALLOWED) and {package for _, package in _targets()} <= set(ALLOWED)


def test_packages_import_only_what_the_table_allows() -> None:
    wrong = []
    for item, package in _targets():
        allowed = {item.importer} | ALLOWED[item.importer]
        if item.for_types_only:
            allowed |= ALLOWED_FOR_TYPES.get(item.importer, set())
        if package not in allowed:
            wrong.append(f"{item.file}:{item.line}: {item.importer} imports {item.module}")
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_cycle() -> None:
    """Arrows point one way: a package is never reachable from what it imports."""

    def reachable(package: str, seen: set[str]) -> set[str]:
        for target in ALLOWED[package] - seen:
            seen.add(target)
            reachable(target, seen)
        return seen

    for package in ALLOWED:
        assert package not in reachable(package, set()), package


def test_the_torch_executor_is_imported_by_the_factory_alone() -> None:
    importers = {item.importer for item, package in _targets() if package == "executors.torch"}
    assert importers == {"executors.torch", "factory"}


def test_the_core_is_pure_and_deterministic() -> None:
    """Standard library only, no chance and no calendar; the real time is read in one place."""
    for item in IMPORTS:
        root = item.module.split(".")[0]
        if item.importer == "core":
            assert root == "headway" or root in sys.stdlib_module_names, item
            assert root not in FORBIDDEN_IN_CORE, item
            assert root != "time" or item.file == "core/clock.py", item
    clock = (_SOURCE / "core" / "clock.py").read_text(encoding="utf-8")
    assert "time.time(" not in clock, "wall time can jump; the clock is monotonic"


def test_third_party_packages_stay_where_they_belong() -> None:
    wrong = []
    for item in IMPORTS:
        root = item.module.split(".")[0]
        is_foreign = root != "headway" and root not in sys.stdlib_module_names
        if is_foreign and root not in THIRD_PARTY.get(item.importer, set()):
            wrong.append(f"{item.file}:{item.line}: {item.importer} imports {root}")
    assert not wrong, "\n".join(wrong)


def test_the_command_line_imports_lazily() -> None:
    files = {"cli/__init__.py", "cli/options.py", *(f"cli/{command}.py" for command in _COMMANDS)}
    for item, _ in _targets():
        if item.file in files and item.at_module_level and not item.for_types_only:
            assert re.match(AT_IMPORT_OF_COMMANDS, item.module), (
                f"{item.file}:{item.line}: import it inside the command"
            )


@pytest.mark.parametrize(
    "module",
    [
        "headway",
        "headway.core",
        "headway.core.engine",
        "headway.executors.scripted",
        "headway.cli",
        "headway.frontends.steplog",
        "headway.workload",
        "headway.report",
        "headway.text",
        "headway.catalog",
    ],
)
def test_importing_loads_neither_torch_nor_numpy(module: str) -> None:
    _assert_light(f"import {module}")


def test_help_loads_neither_torch_nor_numpy() -> None:
    """`headway --help` imports every sub-command's module."""
    _assert_light(
        "from click.testing import CliRunner; from headway.cli import cli; "
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0"
    )


def _assert_light(statement: str) -> None:
    heavy = "{'torch', 'numpy', 'tokenizers', 'starlette', 'matplotlib', 'gguf'}"
    code = f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
