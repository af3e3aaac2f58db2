"""Which inputs of a batch run together. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan_runs(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cuts a batch into runs: lists of places in `lengths`, each place in exactly one.

    Only attention is padded, to the longest text of its run; so texts of like lengths go together, and a run holds at
    most `max_tokens` tokens, padding included. A longer text runs alone.
    """
    runs: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if runs and (len(runs[-1]) + 1) * lengths[place] <= max_tokens:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs
