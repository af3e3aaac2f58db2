"""`trtdecode eval`: what a precision costs in quality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY, choose_model, newest_version_dir
from trtdecode.errors import ConfigError


def register(app: typer.Typer) -> None:
    app.command("eval", rich_help_panel="Measuring")(evaluate_model)


def evaluate_model(
    model: Annotated[str | None, typer.Argument(help="Model name; default the only one in the repository.")] = None,
    repository: Annotated[Path, typer.Option(help="Triton model repository.")] = DEFAULT_REPOSITORY,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,...", help="Parameters to evaluate with; repeatable, the first is compared with."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of every variant. Repeatable.")
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="Text files, one after the other; default a shipped one.")
    ] = None,
    choices: Annotated[
        list[Path] | None,
        typer.Option(help="Multiple-choice JSONL, also as lm-eval's --log_samples writes it; default a shipped one."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Tokens that predict the next one at most.")] = 512,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Perplexity, next-token accuracy and multiple choice, by precision.

    Through the loop that serves, with its chunks and its KV cache. Without --variant each weight precision of the
    newest version is evaluated, widest first.
    """
    from rich.console import Console

    from trtdecode.evaluate import run
    from trtdecode.evaluate.choices import read_questions
    from trtdecode.manifest import read_manifest

    version_dir = newest_version_dir(repository, choose_model(repository, model))
    manifest = read_manifest(version_dir)
    if manifest.spec.task != "generate":
        raise ConfigError(f"{version_dir}: task {manifest.spec.task}; only generating models can be evaluated")
    names = variant or [f"precision={precision}" for precision in _widest_first(manifest.graphs)]
    variants = [run.Variant.parse(name, settings or []) for name in names]
    questions = [question for path in choices or [run.shipped_questions()] for question in read_questions(path)]
    console = Console(stderr=True)
    with console.status("") as status:
        scores = run.evaluate(
            version_dir,
            variants,
            text="\n\n".join(_read(path) for path in text) if text else run.shipped_text(),
            questions=questions,
            window=window,
            progress=status.update,
        )
    rows = run.as_rows(scores)
    Console().print(_table(rows))
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def _widest_first(precisions: Any) -> list[str]:
    order = ("f32", "bf16", "f16", "int8", "int4")
    return sorted(precisions, key=lambda name: order.index(name) if name in order else len(order))


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text {path}: not readable ({error})") from error


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    first = rows[0]
    table = Table(
        caption=f"ppl: perplexity over {first['num_tokens']} tokens; next: share of tokens that were the likeliest; "
        f"ratio, same: perplexity and likeliest tokens against the first row; choice, norm: share of "
        f"{first['num_questions']} questions, by log-likelihood and by it a character "
        f"(standard error {first['choice_standard_error']:.3f})"
    )
    table.add_column("variant", overflow="fold")
    figures = {
        "ppl": ("perplexity", ".3f"),
        "ratio": ("perplexity_ratio", ".4f"),
        "next": ("next_token_accuracy", ".3f"),
        "same": ("agreement", ".3f"),
        "choice": ("choice_accuracy", ".3f"),
        "norm": ("choice_accuracy_norm", ".3f"),
    }
    for title in figures:
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row["variant"], *(format(row[key], form) for key, form in figures.values()))
    return table
