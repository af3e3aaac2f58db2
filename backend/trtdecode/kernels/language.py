"""The kernel language, or a stand-in that only lets the kernel modules be imported.

A machine that launches ahead-of-time cubins needs no triton-lang. The kernels' bodies name `tl` when they run and
their annotations are never evaluated (`from __future__ import annotations`), so a plain function is enough there.
Compiling or interpreting needs the real package; `require` says so.
"""

from __future__ import annotations

from typing import Any

from trtdecode.errors import UnsupportedError

try:
    import triton
    import triton.language

    tl: Any = triton.language
    jit: Any = triton.jit
    HAVE_LANGUAGE = True
except ImportError:
    tl = None
    HAVE_LANGUAGE = False

    def jit(function: Any = None, **_options: Any) -> Any:
        """Keeps the function as it is: only its name and its argument names are used."""
        return function if function is not None else (lambda inner: inner)


def require(purpose: str) -> None:
    """Raises UnsupportedError when triton-lang is not installed; `purpose` completes "triton-lang is needed to ..."."""
    if not HAVE_LANGUAGE:
        raise UnsupportedError(
            f"triton-lang is needed to {purpose}; install trtdecode[kernels], "
            f"or compile cubins for this GPU elsewhere with `python -m trtdecode.kernels.aot`"
        )


def interpreted(function: Any) -> bool:
    """Whether `function` was decorated under TRITON_INTERPRET=1 and so runs on CPU tensors."""
    return type(function).__name__ == "InterpretedFunction"


def version() -> str:
    """triton-lang's version."""
    require("compile kernels")
    return str(triton.__version__)
