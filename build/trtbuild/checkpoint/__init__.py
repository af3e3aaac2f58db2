"""Checkpoints of any format -> named float32 weights, a config and tokenizer files."""

from __future__ import annotations

from pathlib import Path

from trtdecode.errors import CheckpointError

from trtbuild.checkpoint.base import Checkpoint, Weights, load

__all__ = ["Checkpoint", "Weights", "load", "open_checkpoint"]


def open_checkpoint(source: Path) -> Checkpoint:
    """Opens a .gguf file, or a folder with Hugging Face files or exactly one .gguf.

    Raises:
        CheckpointError: nothing usable there, or the checkpoint is incomplete; names file, tensor and type.
    """
    if source.is_file() and source.suffix == ".gguf":
        from trtbuild.checkpoint.gguf_checkpoint import open_gguf

        return open_gguf(source)
    if not source.is_dir():
        what = "is neither a .gguf file nor a folder" if source.exists() else "does not exist"
        raise CheckpointError(f"{source}: {what}; give a .gguf file or a Hugging Face folder")
    gguf_files = sorted(source.glob("*.gguf"))
    if gguf_files and not (source / "config.json").is_file():
        if len(gguf_files) > 1:
            names = ", ".join(path.name for path in gguf_files)
            raise CheckpointError(f"{source}: holds several GGUF files ({names}); name one of them")
        return open_checkpoint(gguf_files[0])
    from trtbuild.checkpoint.huggingface import open_folder

    return open_folder(source)
