"""Runs a batch: what has no result yet is answered, and written as it finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trtdecode.offline.files import BatchLine, ResultFile, read_requests


@dataclass(slots=True)
class BatchSummary:
    """What a run did."""

    num_requests: int  # in the input
    num_taken_up: int = 0  # had a result from an earlier run
    num_ok: int = 0
    num_failed: int = 0
    num_tokens: int = 0  # generated; by an encoder: read


class Answers(Protocol):
    """Who answers lines: `answer.Answerer` or `encode.EncoderAnswerer`."""

    def answers(self, lines: Iterable[BatchLine]) -> Iterator[dict[str, Any]]:
        """One output line for each, in any order; takes no more lines than it works on."""
        ...


def run_batch(
    source: Path,
    target: Path,
    answerer: Answers,
    *,
    on_result: Callable[[BatchSummary], None] = lambda summary: None,
) -> BatchSummary:
    """Answers every request of `source` that has no result in `target` yet.

    The whole input is checked before the first request runs.

    Args:
        on_result: called once before the first and after each result.

    Raises:
        ConfigError: the input or an existing output is not what it should be.
    """
    ids = {line.custom_id for line in read_requests(source)}
    with ResultFile(target) as results:
        todo = (line for line in read_requests(source) if line.custom_id not in results.done)
        summary = BatchSummary(len(ids), num_taken_up=len(results.done & ids))
        on_result(summary)
        for result in answerer.answers(todo):
            results.append(result)
            _count(summary, result["response"])
            on_result(summary)
    return summary


def _count(summary: BatchSummary, response: dict[str, Any]) -> None:
    if response["status_code"] == 200:
        summary.num_ok += 1
        usage = response["body"]["usage"]
        summary.num_tokens += usage.get("completion_tokens", usage["total_tokens"])
    else:
        summary.num_failed += 1
