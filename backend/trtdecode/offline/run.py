"""Runs a batch: enough requests in flight to fill the loop's batches, results in the order in which they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.offline.answer import Answerer
from trtdecode.offline.files import BatchLine, ResultFile, read_requests


@dataclass(slots=True)
class BatchSummary:
    """What a run did."""

    num_requests: int  # in the input
    num_taken_up: int = 0  # had a result from an earlier run
    num_ok: int = 0
    num_failed: int = 0
    num_output_tokens: int = 0


def run_batch(
    source: Path,
    target: Path,
    answerer: Answerer,
    *,
    max_in_flight: int,
    on_result: Callable[[BatchSummary], None] = lambda summary: None,
) -> BatchSummary:
    """Answers every request of `source` that has no result in `target` yet.

    The whole input is checked before the first request runs.

    Args:
        max_in_flight: requests handed to the loop at a time; twice `max_num_seqs` keeps its batches full.
        on_result: called once before the first and after each result.

    Raises:
        ConfigError: the input or an existing output is not what it should be.
    """
    ids = {line.custom_id for line in read_requests(source)}
    with ResultFile(target) as results:
        todo = (line for line in read_requests(source) if line.custom_id not in results.done)
        summary = BatchSummary(len(ids), num_taken_up=len(results.done & ids))
        on_result(summary)
        for result in _answers(answerer, todo, max_in_flight):
            results.append(result)
            _count(summary, result["response"])
            on_result(summary)
    return summary


def _answers(answerer: Answerer, lines: Iterable[BatchLine], max_in_flight: int) -> Iterator[dict[str, Any]]:
    """Results as they finish. At most `max_in_flight` lines are held, however long the input."""
    remaining = iter(lines)
    running: set[Future[dict[str, Any]]] = set()
    pool = ThreadPoolExecutor(max_in_flight, thread_name_prefix="trtdecode-batch")
    try:
        while True:
            while len(running) < max_in_flight and (line := next(remaining, None)) is not None:
                running.add(pool.submit(answerer.answer, line))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        # Left early (Ctrl-C): what has not started never will; what runs is cancelled when the replica closes.
        pool.shutdown(wait=False, cancel_futures=True)


def _count(summary: BatchSummary, response: dict[str, Any]) -> None:
    if response["status_code"] == 200:
        summary.num_ok += 1
        summary.num_output_tokens += response["body"]["usage"]["completion_tokens"]
    else:
        summary.num_failed += 1
