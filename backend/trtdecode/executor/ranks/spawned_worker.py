"""`python -m trtdecode.executor.ranks.spawned_worker FD`: one rank, driven over the socket FD until it closes.

Takes a `(RankTask, init_method)`, then batches. Answers each with `(failure, value)`: a text or "", facts or a result.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from trtdecode.executor.ranks.worker import RankWorker

_LOOK_S = 1.0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which closes the socket
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(int(sys.argv[1]))
    task, init_method = connection.recv()
    # The driver is done with us, or gone:
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            worker = RankWorker(task, init_method)
            connection.send(("", worker.facts()))
            while True:
                batch = connection.recv()
                connection.send(("", worker.execute(batch)))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            connection.send((f"{type(error).__name__}: {error}", None))
            connection.recv()  # stay until we are dismissed: a rank that is gone is taken for the one that failed first
    os._exit(0)  # other ranks may be gone already: no farewell that would wait for them


def _end_with_parent(parent: int) -> None:
    """A rank that waits for another one does not look at its socket."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
