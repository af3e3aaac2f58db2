"""`trtdecode serve` and `trtdecode drain`: a supervised tritonserver, and its orderly end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY
from trtdecode.errors import ServerError


def register(app: typer.Typer) -> None:
    app.command("serve", rich_help_panel="Serving")(serve)
    app.command("drain", rich_help_panel="Serving")(drain)


def serve(
    repository: Annotated[Path, typer.Argument(help="Triton model repository.")] = DEFAULT_REPOSITORY,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535)] = 8001,
    metrics_port: Annotated[int, typer.Option(min=1, max=65535)] = 8002,
    log_file: Annotated[Path | None, typer.Option(help="tritonserver's output; default a temporary file.")] = None,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds to finish running requests at the end.")] = 30.0,
) -> None:
    """Run a tritonserver and keep it serving.

    A dead stub or server is noticed and replaced. SIGTERM or Ctrl-C drains: running requests finish, new ones are
    refused, then the server ends; a second signal cancels what still runs.
    """
    from trtdecode.server import supervise
    from trtdecode.server.launch import TritonServer
    from trtdecode.server.ports import Ports

    def announce(server: TritonServer) -> None:
        models = ", ".join(server.client.ready_models()) or "no model"
        typer.echo(f"serving {models}: HTTP {server.http_address}, gRPC {server.grpc_address}, log {server.log_path}")

    status = supervise.serve(
        repository,
        ports=Ports(http_port, grpc_port, metrics_port),
        host=host,
        log_path=log_file,
        options=supervise.SupervisorOptions(drain_timeout_s=drain_timeout),
        log=typer.echo,
        on_ready=announce,
    )
    raise typer.Exit(status)


def drain(
    model: Annotated[str | None, typer.Argument(help="Only this model; default all of this machine.")] = None,
    version: Annotated[str | None, typer.Option(help="Only this version of it.")] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End running requests instead of finishing them.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Take new work again.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for running requests.")] = 30.0,
) -> None:
    """Refuse new work and finish or cancel what runs: before an unload, a replacement or a SIGTERM."""
    from trtdecode.server import drain as draining

    if resume:
        draining.resume(model, version=version)
        return
    unfinished = 0
    for report in draining.drain(model, version=version, cancel=cancel, timeout_s=timeout):
        state = "drained" if report.drained else f"{report.live} requests left {report.error}".rstrip()
        typer.echo(f"{report.instance}: {state} after {report.seconds:.1f} s")
        unfinished += not report.drained
    if unfinished:
        raise ServerError(f"{unfinished} instances did not drain in {timeout:g} s; --cancel ends their requests")
