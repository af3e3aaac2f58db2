"""Plans as terminal tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.table import Table

from trtdecode.plan.encoder_report import EncoderRow
from trtdecode.plan.report import Row

AnyRow = TypeVar("AnyRow", Row, EncoderRow)


def plan_table(rows: Sequence[Row], best: Row, api_price: float) -> Table:
    """One line a row, the recommended one marked. With a price elsewhere, the saving against it."""

    def cells(row: Row) -> list[str]:
        bounds = row.bounds
        return [
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

    headings = ["device", "precision", "devices", "weights GiB", "KV MiB/seq", "fit", "bound by"]
    return _table([*headings, "tokens/s", "prefill/s", "$/M tokens"], rows, cells, best, api_price)


def encoder_table(rows: Sequence[EncoderRow], best: EncoderRow, api_price: float) -> Table:
    """One line a row, the recommended one marked. With a price elsewhere, the saving against it."""

    def cells(row: EncoderRow) -> list[str]:
        sizes = row.batching
        return [
            row.device.name,
            row.precision,
            f"{sizes.memory_bytes / 2**30:.2f}",
            str(sizes.max_batch_size),
            f"{sizes.preferred_batch_sizes[0]}+",
            f"{sizes.max_queue_delay * 1e6:.0f}",
            f"{sizes.batch_seconds * 1e3:.2f}",
            sizes.limit,
            f"{sizes.texts_per_s:.0f}",
            f"{row.tokens_per_s:.0f}",
            f"{row.cost_per_million_tokens:.6f}",
        ]

    headings = ["device", "precision", "memory GiB", "max batch", "preferred", "delay us", "batch ms", "bound by"]
    return _table([*headings, "texts/s", "tokens/s", "$/M tokens"], rows, cells, best, api_price)


def _table(
    headings: list[str], rows: Sequence[AnyRow], cells: Callable[[AnyRow], list[str]], best: AnyRow, api_price: float
) -> Table:
    table = Table()
    for heading in headings + (["saves"] if api_price else []):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        saving = [f"{1 - row.cost_per_million_tokens / api_price:.0%}"] if api_price else []
        table.add_row(*cells(row), *saving, style="bold" if row is best else None)
    return table
