"""The page as one HTML file that needs no network and no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from headway.doctor.figures import Figures
from headway.doctor.page.page import Grid, Listing, Page, Paragraph
from headway.report.html import Series, line_plot

_STYLE = """
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; color: #1f2933;
       max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1rem; color: #616e7c; margin: 0; font-weight: normal; }
h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem; }
p { margin: .3rem 0; } p.verdict { font-size: 1.35rem; font-weight: 600; } p.soft, .soft { color: #616e7c; }
.good { color: #1a7f4f; } .bad { color: #b42318; } .open { color: #8a6100; }
ul, ol { margin: .3rem 0; padding-left: 1.4rem; } li { margin: .2rem 0; } li ul { list-style: none; padding-left: 0; }
table { border-collapse: collapse; font-size: .9rem; } .plots { display: flex; flex-wrap: wrap; }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e7eb;
         font-weight: normal; } th { color: #616e7c; } td:first-child { font-family: ui-monospace, monospace; }
"""


def html_page(page: Page, plots: Sequence[Series] = ()) -> str:
    """The document, with plots at its end."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}: {escape(page.headline)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{escape(page.title)}</h1><p class="verdict {page.tone}">{escape(page.headline)}</p>',
        f'<p class="soft">{escape(page.subtitle)}</p>',
    ]
    for section in page.sections:
        parts.append(f"<h2>{escape(section.title)}</h2>")
        for block in section.blocks:
            parts += _block(block)
    drawn = [line_plot(series) for series in plots if len(series.points) > 1]
    if drawn:
        parts += ['<h2>Over time</h2><div class="plots">', *drawn, "</div>"]
    return "\n".join([*parts, "</body></html>", ""])


def plots_of(figures: Figures) -> list[Series]:
    """KV usage, RUNNING and WAITING over time, of the engine with the most samples."""
    if not figures.series:
        return []
    longest = max(figures.series, key=lambda one: len(one.samples))
    wanted = (("kv_usage", "KV cache in use", "%"), ("num_running", "RUNNING", ""), ("num_waiting", "WAITING", ""))
    found = [Series(title, "s", longest.points(name), unit) for name, title, unit in wanted]
    return [series for series in found if len(series.points) > 1]


def _block(block: Paragraph | Listing | Grid) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield f'<p class="soft">{escape(block.text)}</p>' if block.is_soft else f"<p>{escape(block.text)}</p>"
    elif isinstance(block, Grid):
        yield "<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in block.header) + "</tr>"
        for row in block.rows:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        yield "</table>"
    else:
        tag = "ol" if block.is_ordered else "ul"
        yield f"<{tag}>"
        for item in block.items:
            text = f"<b>{escape(item.text)}</b>" if item.is_strong else escape(item.text)
            under = "".join(f"<li>{escape(detail)}</li>" for detail in item.details)
            yield f"<li>{text}<ul>{under}</ul></li>" if under else f"<li>{text}</li>"
        yield f"</{tag}>"
