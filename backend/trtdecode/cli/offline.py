"""`trtdecode batch`: a file of requests to a file of answers, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY, choose_model, newest_version_dir
from trtdecode.errors import ConfigError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from rich.console import Console
    from rich.progress import Progress

    from trtdecode.config import ServingConfig
    from trtdecode.offline.run import Answers


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

    A line is `{"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}`; url may also be
    /v1/completions, or /v1/embeddings (/v1/rerank) where the model is an encoder (a reranker). Run it again after an
    interruption and it goes on where it stopped; lines that failed with a status of 500 or more are tried again.
    """
    import contextlib
    import time

    from rich.console import Console

    from trtdecode.offline.run import BatchSummary, run_batch

    parse_settings(settings or [])  # what is wrong with them is said before anything else
    name = choose_model(repository, model)
    console = Console(stderr=True, highlight=False)
    started = time.monotonic()
    with contextlib.ExitStack() as opened:
        with console.status(f"loading {name}"):
            answerer = _load(newest_version_dir(repository, name), name, settings or [], opened)
        progress = opened.enter_context(_progress(console))
        task = progress.add_task("", total=None, tokens="")

        def show(summary: BatchSummary) -> None:
            done = summary.num_taken_up + summary.num_ok + summary.num_failed
            rate = summary.num_tokens / (time.monotonic() - started)
            progress.update(task, total=summary.num_requests, completed=done, tokens=f"{rate:.0f} tokens/s")

        try:
            summary = run_batch(source, target, answerer, on_result=show)
        except KeyboardInterrupt:
            console.print("stopped; run the same command again to go on")
            raise
    seconds = time.monotonic() - started
    console.print(
        f"{summary.num_ok} answered, {summary.num_failed} failed, {summary.num_taken_up} done before; "
        f"{summary.num_tokens} tokens in {seconds:.1f} s -> {target}"
    )


def _load(version_dir: Path, name: str, settings: list[str], opened: ExitStack) -> Answers:
    """Who answers for the model; `opened` closes it. Raises ConfigError for a setting that the model does not read."""
    import contextlib

    from trtdecode.manifest import read_manifest

    config = parse_settings(settings)
    if read_manifest(version_dir).spec.task == "generate":
        from trtdecode.offline.answer import Answerer
        from trtdecode.replica import Replica

        replica = opened.enter_context(Replica.load(version_dir, config))
        return Answerer(replica, name, max_in_flight=2 * config.max_num_seqs)
    from trtdecode.encoder.replica import EncoderReplica
    from trtdecode.model_config import ENCODER_PARAMETERS
    from trtdecode.offline.encode import EncoderAnswerer

    for setting in settings:
        if (key := setting.partition("=")[0]) not in ENCODER_PARAMETERS:
            raise ConfigError(f"--set {key}: {name} is an encoder; these read {', '.join(sorted(ENCODER_PARAMETERS))}")
    encoder = EncoderReplica.load(version_dir, config)
    opened.enter_context(contextlib.closing(encoder))
    return EncoderAnswerer(encoder, name)


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
