"""The page in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headway.doctor.page.page import Grid, Item, Listing, Page, Paragraph
from headway.report.tables import new_table

_TONES = {"good": "bold green", "bad": "bold red", "open": "bold yellow"}


def terminal_page(page: Page) -> Group:
    """Something that rich prints. No text of the evidence is taken for markup."""
    parts: list[RenderableType] = [Text(page.headline, style=_TONES[page.tone])]
    if page.subtitle:
        parts.append(Text(page.subtitle, style="dim"))
    for section in page.sections:
        parts += [Text(), Text(section.title, style="bold")]
        parts += [_block(block) for block in section.blocks]
    return Group(*parts)


def _block(block: Paragraph | Listing | Grid) -> RenderableType:
    if isinstance(block, Paragraph):
        return Text(block.text, style="dim" if block.is_soft else "")
    if isinstance(block, Grid):
        return _grid(block)
    rows: list[RenderableType] = []
    for number, item in enumerate(block.items, start=1):
        rows += _item(f"{number}." if block.is_ordered else "•", item)
    return Group(*rows)


def _item(mark: str, item: Item) -> list[RenderableType]:
    table = new_table(show_header=False)
    table.padding = (0, 1, 0, 0)
    table.add_column(no_wrap=True, width=2)
    table.add_column(overflow="fold")
    table.add_row(Text(mark), Text(item.text, style="bold" if item.is_strong else ""))
    for text in item.details:
        table.add_row("", Text(text))
    return [Padding(table, (0, 0, 0, 0))]


def _grid(block: Grid) -> RenderableType:
    table = new_table()
    for index, name in enumerate(block.header):
        table.add_column(name, style="dim" if index > 2 else "", overflow="fold", ratio=None)
    for row in block.rows:
        table.add_row(*map(Text, row))
    return table
