"""Assembles the command line from its groups."""

from __future__ import annotations

import importlib

import typer

#: Modules of this package in the order of `--help`; each defines `register(app: typer.Typer) -> None`.
GROUPS = (
    "models",
    "engines",
    "serving",
    "gateway",
    "chat",
    "replay",
    "offline",
    "load",
    "evaluation",
    "promotion",
    "planning",
    "doctor",
)

_HELP = """
Serve LLM decoding through Triton Inference Server: on TensorRT engines, or on a CPU.

From a checkpoint to an answer:

- `trtdecode import SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2`
- `trtdecode serve`
- `trtdecode chat "What is a B-tree?"`
"""


def build_app() -> typer.Typer:
    """The whole command line. Each call makes a new one."""
    app = typer.Typer(
        name="trtdecode",
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for group in GROUPS:
        importlib.import_module(f"trtdecode.cli.{group}").register(app)
    return app
