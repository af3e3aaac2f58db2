"""The report: terminal rows while it runs, JSON for machines, one self-contained HTML page for people."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

from rich.table import Table

COLUMNS = (
    ("level", "load", "{}"),
    ("tool", "tool", "{}"),
    ("requests", "requests", "{}"),
    ("error_rate", "errors", "{:.1%}"),
    ("requests_per_s", "requests /s", "{:.2f}"),
    ("tokens_per_s", "tokens /s", "{:.0f}"),
    ("goodput_per_s", "goodput /s", "{:.2f}"),
    ("ttft_p50", "TTFT p50 ms", "ms"),
    ("ttft_p95", "TTFT p95 ms", "ms"),
    ("itl_p50", "ITL p50 ms", "ms"),
    ("itl_p95", "ITL p95 ms", "ms"),
    ("e2e_p95", "E2E p95 ms", "ms"),
)


def cells(figures: dict[str, Any]) -> list[str]:
    """A level's figures as text; what a tool cannot know is a dash."""
    row = []
    for key, _, form in COLUMNS:
        value = figures.get(key)
        if value is None:
            row.append("-")
        else:
            row.append(f"{value * 1000:.1f}" if form == "ms" else form.format(value))
    return row


def terminal_table(levels: Sequence[dict[str, Any]]) -> Table:
    """A rich table with a row for each level so far; headings break at their spaces, so that 90 columns are enough."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for _, heading, _ in COLUMNS:
        table.add_column(heading.replace(" ", "\n"), justify="right", no_wrap=True)
    for figures in levels:
        table.add_row(*cells(figures))
    return table


def html_page(result: dict[str, Any]) -> str:
    """A page without outside references: verdicts first, then the table and the plots as inline SVG."""
    verdicts = [("bad", text) for text in result["slo_misses"] + result["disagreements"]]
    if not verdicts:
        counts = "the clients' counts agree with the server's" if result["counts_compared"] else "counts not compared"
        verdicts = [("good", f"{'SLO kept' if result['slo'] else 'No SLO was given'}; {counts}.")]
    notes = [] if result["tokens_counted"] else ["This model does not report token counts: chunks are counted instead."]
    if not result["counts_compared"]:
        notes.append("No metrics address was given: nothing was compared with the server's own counters.")
    if result["perf_analyzer"]:
        notes.append(f"perf_analyzer {result['perf_analyzer']}; its inter-token latency is between responses.")
    head = "".join(f"<th>{html.escape(heading)}</th>" for _, heading, _ in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(level)) + "</tr>"
        for level in result["levels"]
    )
    plots = "".join(
        f'<figure><img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
        f"<figcaption>{html.escape(title)}</figcaption></figure>"
        for title, svg in _plots(result)
    )
    return _PAGE.format(
        title=html.escape(f"Load test of {result['model']}"),
        machine=html.escape(result["machine"]),
        verdicts="".join(f'<li class="{kind}">{html.escape(text, quote=False)}</li>' for kind, text in verdicts),
        notes="".join(f"<p>{html.escape(note)}</p>" for note in notes),
        head=head,
        rows=rows,
        plots=plots,
    )


def _plots(result: dict[str, Any]) -> list[tuple[str, bytes]]:
    levels = [level for level in result["levels"] if level["tool"] == "tokens"]
    plots = []
    for name, title in (("ttft", "Time to first token"), ("itl", "Inter-token latency"), ("e2e", "End to end")):
        lines = {
            f"p{p}": [level[f"{name}_p{p}"] and level[f"{name}_p{p}"] * 1000 for level in levels] for p in (50, 95, 99)
        }
        plots.append((f"{title} over load", _draw([str(level["level"]) for level in levels], lines, "load", "ms")))
    curve = {"p95": [level["e2e_p95"] and level["e2e_p95"] * 1000 for level in levels]}
    throughput = [level["tokens_per_s"] for level in levels]
    plots.append(("Throughput and latency", _draw(throughput, curve, "tokens/s", "end to end p95, ms")))
    for level in levels:
        series = level.get("series") or {"times": [], "values": {}}
        known = {k: v for k, v in series["values"].items() if any(value is not None for value in v)}
        if known:
            plots.append((f"Server at load {level['level']}", _draw(series["times"], known, "seconds", "count")))
    return plots


def _draw(x: Sequence[Any], lines: dict[str, list[Any]], xlabel: str, ylabel: str) -> bytes:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for label, y in lines.items():
        axes.plot(x, [float("nan") if value is None else value for value in y], marker="o", markersize=3, label=label)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    return buffer.getvalue()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: #1a1a1a }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd }}
li.good {{ color: #0a6b2d }} li.bad {{ color: #a3130f; font-weight: 600 }}
.plots {{ display: grid; margin-top: 2rem; grid-template-columns: repeat(auto-fit, minmax(30rem, 1fr)); gap: 1rem }}
figure {{ margin: 0 }} img {{ width: 100% }}
</style></head><body>
<h1>{title}</h1><p>{machine}</p><ul>{verdicts}</ul>{notes}
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
<div class="plots">{plots}</div>
</body></html>
"""
