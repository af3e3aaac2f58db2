"""`trtdecode batch`: a file of requests to a file of answers, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY, choose_model, newest_version_dir
from trtdecode.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from trtdecode.config import ServingConfig


def register(app: typer.Typer) -> None:
    app.command("batch", rich_help_panel="Offline")(batch)


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests in OpenAI's batch format.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Results, in the order in which they finish.")],
    model: Annotated[str | None, typer.Option(help="Model name; default the only one in the repository.")] = None,
    repository: Annotated[Path, typer.Option(help="Triton model repository.")] = DEFAULT_REPOSITORY,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of config.pbtxt. Repeatable.")
    ] = None,
) -> None:
    """Answer a file of requests on the same loop that serves, without a server.

    A line is `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`. Run it again after
    an interruption and it goes on where it stopped; lines that failed with a status of 500 or more are tried again.
    """
    import time

    from rich.console import Console

    from trtdecode.offline.answer import Answerer
    from trtdecode.offline.run import BatchSummary, run_batch
    from trtdecode.replica import Replica

    config = parse_settings(settings or [])
    name = choose_model(repository, model)
    console = Console(stderr=True, highlight=False)
    started = time.monotonic()
    with console.status(f"loading {name}"):
        replica = Replica.load(newest_version_dir(repository, name), config)
    with replica, _progress(console) as progress:
        task = progress.add_task("", total=None, tokens="")

        def show(summary: BatchSummary) -> None:
            done = summary.num_taken_up + summary.num_ok + summary.num_failed
            rate = summary.num_output_tokens / (time.monotonic() - started)
            progress.update(task, total=summary.num_requests, completed=done, tokens=f"{rate:.0f} tokens/s")

        answerer = Answerer(replica, name)
        try:
            summary = run_batch(source, target, answerer, max_in_flight=2 * config.max_num_seqs, on_result=show)
        except KeyboardInterrupt:
            console.print("stopped; run the same command again to go on")
            raise
    seconds = time.monotonic() - started
    console.print(
        f"{summary.num_ok} answered, {summary.num_failed} failed, {summary.num_taken_up} done before; "
        f"{summary.num_output_tokens} tokens in {seconds:.1f} s -> {target}"
    )


def parse_settings(settings: list[str]) -> ServingConfig:
    """`--set key=value` pairs as a configuration. Raises ConfigError for a pair without `=`, and as config.py does."""
    from trtdecode.config import ServingConfig

    pairs = [setting.partition("=") for setting in settings]
    for setting, (_, separator, _) in zip(settings, pairs, strict=True):
        if not separator:
            raise ConfigError(f"--set {setting}: must be KEY=VALUE")
    return ServingConfig.from_parameters({key: value for key, _, value in pairs})


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[tokens]}"), TimeRemainingColumn(), console=console
    )
