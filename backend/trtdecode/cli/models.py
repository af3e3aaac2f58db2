"""`trtdecode import`: from a checkpoint to a model version that a server can load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY, versions_of
from trtdecode.manifest import RankLayout


def register(app: typer.Typer) -> None:
    app.command("import", rich_help_panel="Models")(import_model)


def import_model(
    checkpoint: Annotated[Path, typer.Argument(help="A .gguf file, or a Hugging Face folder with safetensors.")],
    name: Annotated[str | None, typer.Option(help="Model name; default from the checkpoint's file name.")] = None,
    repository: Annotated[Path, typer.Option(help="Triton model repository.")] = DEFAULT_REPOSITORY,
    version: Annotated[int | None, typer.Option(help="Version number; default the next free one.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Weights to write: int8, f32, int4. Repeatable.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the checkpoint's config. Repeatable."),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Folder with the tokenizer.json to use instead.")] = None,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="INT8 anew, one scale a row: for compute_precision int8.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite an existing version.")] = False,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="Split heads and MLPs over so many ranks.")] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option(min=1, help="Split the layers into so many stages.")] = 1,
) -> None:
    """Turn a checkpoint into a model version.

    Writes NAME/VERSION with the graph, its weights, the tokenizer and a manifest of digests; and a NAME/config.pbtxt
    of three lines unless there is one. The version appears by one rename, when it is complete.
    """
    from rich.console import Console
    from trtbuild.checkpoint.overrides import parse_setting
    from trtbuild.pipeline import import_checkpoint

    model_dir = repository / (name or default_name(checkpoint))
    number = version if version is not None else max(versions_of(model_dir), default=0) + 1
    console = Console(highlight=False)
    started = time.monotonic()
    with console.status(f"open {checkpoint}") as status:
        report = import_checkpoint(
            checkpoint,
            model_dir,
            version=number,
            precisions=precision or None,
            overrides=dict(parse_setting(text) for text in setting or []),
            tokenizer=tokenizer,
            replace=replace,
            requantize=requantize,
            ranks=RankLayout(tensor_parallel_size, pipeline_parallel_size),
            progress=status.update,
        )
    for decision in report.decisions:
        console.print(f"  {decision}", markup=False)
    seconds, megabytes = time.monotonic() - started, report.num_bytes / 1e6
    console.print(f"{report.version_dir}: {megabytes:.0f} MB in {seconds:.1f} s; serve it with `trtdecode serve`")


def default_name(checkpoint: Path) -> str:
    """A model name from a file or folder name: "Llama-3.2-1B.Q4_0.gguf" is "llama-3.2-1b.q4_0"."""
    stem = checkpoint.resolve().name
    return stem.removesuffix(".gguf").lower()
