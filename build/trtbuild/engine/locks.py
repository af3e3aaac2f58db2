"""One builder at a time in an engine folder, across processes."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path

LOCK_FILE = ".build.lock"


@contextlib.contextmanager
def build_lock(directory: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the folder's lock; waits while another process has it. The kernel drops it with the process.

    Args:
        on_wait: called once if the lock is taken, before waiting.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK_FILE).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
