"""Reading a JSON object from a checkpoint's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtdecode.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises CheckpointError: missing, not JSON, or not an object."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; a checkpoint folder needs it") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object")
    return value
