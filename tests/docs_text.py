"""What the pages say: commands in code, links, make targets."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "examples/**/*.md", "skills/**/*.md", "bench/**/*.md")
    for path in ROOT.glob(pattern)
)
SCRIPTS = sorted((ROOT / "examples").rglob("*.sh"))
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>&1", ")"}


def generator() -> ModuleType:
    """docs/generate.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("headway_docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands(text: str, *, is_script: bool = False) -> Iterator[list[str]]:
    """The words after `headway` of every command in a page's code, up to what another command begins with.

    An ellipsis is left out, and so is what stands in square brackets at the end; a shell's variable is 1.
    """
    blocks = [text] if is_script else [*_FENCE.findall(text), *_SPAN.findall(_FENCE.sub("", text))]
    for block in blocks:
        joined = re.sub(r"\\\n\s*", " ", block)
        for line in joined.splitlines() if "\n" in joined else [re.sub(r"\s+", " ", joined)]:
            match = re.search(r"(?:^|[\s(\"=])(?<!from )headway ((?:--?)?[a-z].*)", line)
            if match and not line.lstrip().startswith("#"):
                yield _words(match[1].partition(" [")[0])


def _words(line: str) -> list[str]:
    if line.count('"') % 2:
        line = line.rpartition('"')[0]
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _ENDS:
            break
        if word not in ("…", "..."):
            words.append(re.sub(r"\$\w+", "1", word))
    return words


def links(text: str) -> list[str]:
    """Targets of links to files of the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text))
    return [target.partition("#")[0] for target in found if not re.match(r"[a-z]+:|#", target)]


def make_targets(text: str) -> set[str]:
    """Targets that the page tells to make."""
    return set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.M))
