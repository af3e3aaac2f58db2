"""`trtdecode promote`, `rollback` and `history`; `scripts/promote` and `scripts/rollback` call them."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY

if TYPE_CHECKING:
    from trtdecode.server.client import ServerClient

Server = Annotated[
    str, typer.Option("--server", help="HTTP host:port of the running tritonserver; none: only publish.")
]
To = Annotated[Path, typer.Option("--to", help="Model repository.")]


def register(app: typer.Typer) -> None:
    for name, command in (("promote", promote), ("rollback", rollback), ("history", history)):
        app.command(name, rich_help_panel="Promotion")(command)


def promote(
    source: Annotated[Path, typer.Argument(help="Version folder, as `trtdecode import` writes it.")],
    to: To = DEFAULT_REPOSITORY,
    model: Annotated[str | None, typer.Option(help="Model name; default that of the source.")] = None,
    server: Server = "",
    mode: Annotated[
        str, typer.Option(help="overlap: load beside the old version; replace: drain and unload first.")
    ] = "overlap",
    limits: Annotated[Path | None, typer.Option(help="TOML with other limits.")] = None,
    golden: Annotated[
        Path | None, typer.Option(help="Golden prompts; default MODEL/golden.jsonl in the repository.")
    ] = None,
    record_golden: Annotated[Path | None, typer.Option(help="Write the version's own tokens here, and end.")] = None,
    number: Annotated[int | None, typer.Option(min=1, help="Version number; default one above the highest.")] = None,
    who: Annotated[str, typer.Option(help="Who answers for it; goes into the record.")] = "",
    skip: Annotated[list[str] | None, typer.Option(help="Do not ask this gate; repeatable, and recorded.")] = None,
    canary: Annotated[
        int, typer.Option(min=0, help="First load it there as MODEL--candidate, and mirror so many requests.")
    ] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each load or unload.")] = 300.0,
    ci: Annotated[bool, typer.Option("--ci", help="One plain line a gate, for logs.")] = False,
) -> None:
    """Put a model version into service, if every gate says yes.

    Any failure leaves the old version serving. Exit status 0: promoted; 1: refused or failed.
    """
    from rich.console import Console

    from trtdecode.promote import promote as promotion
    from trtdecode.promote.gate import Context, Verdict, closing
    from trtdecode.promote.gates.golden import record_golden as write_golden
    from trtdecode.promote.limits import read_limits
    from trtdecode.promote.publish import PromotionError

    name = model or source.resolve().parent.name
    found_limits = read_limits(limits)
    golden_file = golden or to / name / "golden.jsonl"
    if record_golden is not None:
        with closing(Context(source, to, name, found_limits, golden_file)) as context:
            count = write_golden(context, record_golden)
        typer.echo(f"{count} golden prompts written to {record_golden}; read them before you trust them")
        return
    console = Console(highlight=False)

    def show(verdict: Verdict) -> None:
        word = "passed" if verdict.passed else "REFUSED"
        line = f"{verdict.gate:14} {word:8} {verdict.seconds:6.1f} s  {verdict.evidence}"
        if ci:
            typer.echo(line)
        else:
            console.print(line, style="green" if verdict.passed else "bold red", markup=False)

    outcome = promotion.promote(
        promotion.Request(
            source=source,
            target=to,
            model=name,
            limits=found_limits,
            who=who or getpass.getuser(),
            golden=golden_file,
            client=_client(server),
            mode=mode,
            number=number,
            timeout_s=timeout,
            skip=frozenset(skip or ()),
            canary=canary,
        ),
        on_verdict=show,
        say=typer.echo,
    )
    if not outcome.promoted:
        raise PromotionError(outcome.message)
    typer.echo(outcome.message)


def rollback(
    model: Annotated[str, typer.Argument(help="Model name.")],
    to: To = DEFAULT_REPOSITORY,
    server: Server = "",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for the load.")] = 300.0,
) -> None:
    """Withdraw the highest version and serve the one before."""
    from trtdecode.promote.promote import rollback as roll_back

    number = roll_back(to, model, _client(server), timeout, typer.echo)
    typer.echo(f"version {number} of {model} is in service")


def history(
    model: Annotated[str, typer.Argument(help="Model name.")],
    to: To = DEFAULT_REPOSITORY,
) -> None:
    """Who promoted what, when, and with which verdicts."""
    from trtdecode.promote.record import history as records

    for record in records(to / model):
        gates = ", ".join(f"{gate['gate']} {'ok' if gate['passed'] else 'refused'}" for gate in record["gates"])
        state = "" if record["in_repository"] else " (withdrawn)"
        typer.echo(f"{record['when']}  version {record['version']}{state}  by {record['who']}  {gates}")


def _client(server: str) -> ServerClient | None:
    from trtdecode.errors import ConfigError
    from trtdecode.server.client import ServerClient

    if not server:
        return None
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--server: got {server!r}; write host:port of its HTTP end point")
    return ServerClient(host, int(port), 8002)
