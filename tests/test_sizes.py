"""No file of src/ is longer than 500 lines and no function than 70, unless the reason stands in its docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 70
REASON = "longer than the others on purpose:"
"""What the docstring (of C++, a comment at the head) must say, and go on with why."""
_KINDS = {".py", ".cpp", ".h"}
_HEAD_LINES = 20


def too_long(path: Path, text: str) -> Iterator[str]:
    """What is longer than it may be, and says no reason."""
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES and REASON not in "\n".join(lines[:_HEAD_LINES]):
        yield f"{path}: {len(lines)} lines"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES and REASON not in (ast.get_docstring(node) or ""):
                yield f"{path}:{node.lineno}: {node.name} has {length} lines"


def test_files_and_functions_are_short() -> None:
    files = [path for path in SOURCE.rglob("*") if path.suffix in _KINDS]
    assert len(files) > 300
    found = [text for path in files for text in too_long(path.relative_to(SOURCE), path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_length_and_reason_are_seen() -> None:
    body = "".join(f"    x = {i}\n" for i in range(MAX_FUNCTION_LINES))
    long_function = f"def f():\n{body}"
    with_reason = f'def f():\n    """It is {REASON} one table."""\n{body}'
    assert list(too_long(Path("a.py"), long_function)) == [f"a.py:1: f has {MAX_FUNCTION_LINES + 1} lines"]
    assert list(too_long(Path("a.py"), with_reason)) == []
    long_file = "x = 1\n" * (MAX_FILE_LINES + 1)
    assert list(too_long(Path("a.cpp"), long_file)) == [f"a.cpp: {MAX_FILE_LINES + 1} lines"]
    assert list(too_long(Path("a.cpp"), f"// {REASON} generated.\n{long_file}")) == []
