"""A plan as a terminal table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from trtdecode.plan.report import Row


def plan_table(rows: Sequence[Row], best: Row, api_price: float) -> Table:
    """One line a row, the recommended one marked. With a price elsewhere, the saving against it."""
    table = Table()
    headings = [
        "device",
        "precision",
        "devices",
        "weights GiB",
        "KV MiB/seq",
        "fit",
        "bound by",
        "tokens/s",
        "prefill/s",
        "$/M tokens",
    ]
    for heading in headings + (["saves"] if api_price else []):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        bounds = row.bounds
        cells = [
            row.device.name,
            row.precision,
            f"{row.replicas} x {bounds.ranks}",
            f"{bounds.weight_bytes * bounds.ranks / 2**30:.1f}",
            f"{bounds.kv_bytes_per_sequence * bounds.ranks / 2**20:.0f}",
            str(bounds.max_sequences),
            bounds.limit,
            f"{row.tokens_per_s * row.replicas:.0f}",
            f"{bounds.prefill_tokens_per_s * row.efficiency:.0f}",
            f"{row.cost_per_million_tokens:.3f}",
        ]
        if api_price:
            cells.append(f"{1 - row.cost_per_million_tokens / api_price:.0%}")
        table.add_row(*cells, style="bold" if row is best else None)
    return table
