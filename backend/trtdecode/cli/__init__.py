"""The `trtdecode` command. One file a command group, each with `register(app)`; what a command needs it imports inside,
so that `--help` stays fast."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status.

    0 done; 1 refused, with one line on stderr that says why; 2 wrong usage; 130 interrupted.
    """
    from trtdecode.cli.app import build_app
    from trtdecode.errors import TrtdecodeError

    try:
        build_app()(arguments, prog_name="trtdecode")
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 0
    except TrtdecodeError as error:
        print(f"trtdecode: {error}", file=sys.stderr)
        return 1
    return 0
