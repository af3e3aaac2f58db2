"""Drives the client over the shots: closed loop with N workers, or open loop by arrival times."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from trtdecode.loadtest.client import LoadClient
from trtdecode.loadtest.records import Record
from trtdecode.loadtest.traffic import Shot

Progress = Callable[[int, int], None]  # (done, all)


async def run_shots(
    client: LoadClient, shots: Sequence[Shot], concurrency: int, progress: Progress = lambda done, total: None
) -> tuple[list[Record], float]:
    """Sends every shot and waits for all ends.

    Args:
        concurrency: workers of the closed loop; 0 for the open loop.

    Returns:
        The records in the order of `shots`, and the seconds from the first send to the last end.
    """
    records: list[Record | None] = [None] * len(shots)
    dialogue = _Dialogues()
    start = time.monotonic()

    async def fire(index: int) -> None:
        shot = shots[index]
        record = await client.send(shot, await dialogue.prompt(shot))
        dialogue.answered(shot, record)
        records[index] = record
        progress(sum(found is not None for found in records), len(shots))

    async def worker(order: asyncio.Queue[int]) -> None:
        while not order.empty():
            await fire(order.get_nowait())

    async def timed(index: int) -> None:
        await asyncio.sleep(start + shots[index].at - time.monotonic())
        await fire(index)

    if concurrency:
        # Conversations stay on one worker's path: turn t+1 is behind turn t in the queue, and waits for its answer.
        queue: asyncio.Queue[int] = asyncio.Queue()
        for index in sorted(range(len(shots)), key=lambda i: (shots[i].turn, i)):
            queue.put_nowait(index)
        await asyncio.gather(*(worker(queue) for _ in range(concurrency)))
    else:
        await asyncio.gather(*(timed(index) for index in range(len(shots))))
    return [record for record in records if record is not None], time.monotonic() - start


class _Dialogues:
    """The text so far of each conversation."""

    def __init__(self) -> None:
        self._text: dict[int, str] = defaultdict(str)
        self._turns: dict[tuple[int, int], asyncio.Event] = defaultdict(asyncio.Event)

    async def prompt(self, shot: Shot) -> str:
        if shot.conversation < 0:
            return shot.prompt
        if shot.turn:
            await self._turns[shot.conversation, shot.turn - 1].wait()
        self._text[shot.conversation] += shot.prompt
        return self._text[shot.conversation]

    def answered(self, shot: Shot, record: Record) -> None:
        if shot.conversation >= 0:
            self._text[shot.conversation] += record.text + "\n"
            self._turns[shot.conversation, shot.turn].set()
