"""Entry of the Triton backend: the stub imports this file as the top-level module `model`."""

import importlib.util
import sys
from pathlib import Path

# The stub appended this folder, which would make `config`, `errors`, ... importable by themselves.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
if importlib.util.find_spec("trtdecode") is None:  # the folder was copied into a server without being installed
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from trtdecode.triton_entry import TritonPythonModel  # noqa: E402  (the path had to be set first)

__all__ = ["TritonPythonModel"]
