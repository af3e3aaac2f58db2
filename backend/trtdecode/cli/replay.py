"""`trtdecode replay`: what a flight recorder's dump says about a step gone wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY, choose_model, newest_version_dir

if TYPE_CHECKING:
    from trtdecode.replay import ReplayReport
    from trtdecode.text.tokenizer import Tokenizer


def register(app: typer.Typer) -> None:
    app.command("replay", rich_help_panel="Serving")(replay)


def replay(
    dump: Annotated[
        Path, typer.Argument(help="File written by the watchdog or after a failed step; the log names it.")
    ],
    model: Annotated[str | None, typer.Option(help="Also generate the recorded requests again on this model.")] = None,
    repository: Annotated[Path, typer.Option(help="Triton model repository.")] = DEFAULT_REPOSITORY,
    show: Annotated[bool, typer.Option("--show", help="Print each request's tokens; as text with --model.")] = False,
) -> None:
    """Reproduce recorded steps.

    Without a model the scheduler gets the recorded arrivals, tokens and ends again: every schedule and block move must
    come out as recorded. With `--model` each recorded request also runs again with its seed, and must give the
    recorded tokens. Exit status 1 says that something differs.
    """
    from trtdecode.replay import replay_file

    tokenizer = None
    if model is None:
        report = replay_file(dump)
    else:
        report, tokenizer = _replay_on_model(dump, newest_version_dir(repository, choose_model(repository, model)))
    if show:
        for request_id, tokens in report.streams.items():
            typer.echo(f"request {request_id}: {tokens if tokenizer is None else tokenizer.decode(tokens)!r}")
    typer.echo(f"{report.num_steps} steps with {report.num_tokens} tokens replayed, {_tokens_verdict(report)}")
    if not report.is_same:
        for difference in report.differences:
            typer.echo(f"differs: {difference}")
        raise typer.Exit(1)
    typer.echo("same as recorded")


def _replay_on_model(dump: Path, version_dir: Path) -> tuple[ReplayReport, Tokenizer]:
    from trtdecode.config import ServingConfig
    from trtdecode.executor.factory import create_executor
    from trtdecode.manifest import read_manifest
    from trtdecode.replay import replay_file
    from trtdecode.sampling.sampler import Sampler
    from trtdecode.text.tokenizer import Tokenizer

    manifest = read_manifest(version_dir)
    executor, _ = create_executor(ServingConfig(), manifest, version_dir, device_kind="CPU", device_id=0)
    try:
        report = replay_file(dump, executor, Sampler(manifest.spec.eos_token_ids))
        return report, Tokenizer.from_dir(version_dir)
    finally:
        executor.close()


def _tokens_verdict(report: ReplayReport) -> str:
    skipped = f", {report.num_skipped} with a grammar skipped" if report.num_skipped else ""
    return f"{report.num_regenerated} requests generated again{skipped}"
