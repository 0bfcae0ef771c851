"""The page as Markdown, for an issue or a chat."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headway.doctor.page.page import Grid, Listing, Page, Paragraph


def markdown_page(page: Page) -> str:
    """The document. What the evidence says cannot end a table cell, open a tag or start a list."""
    lines = [f"# {_text(page.title)}", "", f"**{_text(page.headline)}**", ""]
    if page.subtitle:
        lines += [_text(page.subtitle), ""]
    for section in page.sections:
        lines += [f"## {_text(section.title)}", ""]
        for block in section.blocks:
            lines += [*_block(block), ""]
    return "\n".join(lines)


def _block(block: Paragraph | Listing | Grid) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield f"*{_text(block.text)}*" if block.is_soft else _text(block.text)
    elif isinstance(block, Grid):
        yield from _grid(block)
    else:
        for number, item in enumerate(block.items, start=1):
            mark = f"{number}." if block.is_ordered else "-"
            yield f"{mark} **{_text(item.text)}**" if item.is_strong else f"{mark} {_text(item.text)}"
            for detail in item.details:
                yield f"{' ' * (len(mark) + 1)}- {_text(detail)}"


def _grid(block: Grid) -> Iterator[str]:
    yield "| " + " | ".join(map(_text, block.header)) + " |"
    yield "|" + "---|" * len(block.header)
    for row in block.rows:
        yield "| " + " | ".join(map(_text, row)) + " |"


def _text(text: str) -> str:
    """One line with Markdown's own characters taken literally; an underscore inside a word needs nothing."""
    line = " ".join(text.split())
    line = re.sub(r"([\\`*|<>\[\]])", r"\\\1", line)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", line)
