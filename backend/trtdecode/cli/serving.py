"""`trtdecode serve` and `trtdecode drain`: a supervised tritonserver, and its orderly end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY
from trtdecode.errors import ServerError

if TYPE_CHECKING:
    from trtdecode.server.companion import Companion
    from trtdecode.server.ports import Ports


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
    openai: Annotated[bool, typer.Option("--openai", help="OpenAI's API and the page too, as `gateway` does.")] = False,
    openai_port: Annotated[int, typer.Option(min=1, max=65535)] = 8080,
    api_keys: Annotated[Path | None, typer.Option(help="With --openai: file with one key a line.")] = None,
) -> None:
    """Run a tritonserver and keep it serving.

    A dead stub, server or gateway is noticed and replaced. SIGTERM or Ctrl-C drains: running requests finish, new ones
    are refused, then the servers end; a second signal cancels what still runs.
    """
    from trtdecode.server import supervise
    from trtdecode.server.launch import TritonServer
    from trtdecode.server.ports import Ports

    def announce(server: TritonServer) -> None:
        models = ", ".join(server.client.ready_models()) or "no model"
        typer.echo(f"serving {models}: HTTP {server.http_address}, gRPC {server.grpc_address}, log {server.log_path}")

    ports = Ports(http_port, grpc_port, metrics_port)
    companion = _gateway(repository, ports, host, openai_port, api_keys, drain_timeout) if openai else None
    status = supervise.serve(
        repository,
        ports=ports,
        host=host,
        log_path=log_file,
        options=supervise.SupervisorOptions(drain_timeout_s=drain_timeout),
        log=typer.echo,
        on_ready=announce,
        companion=companion,
    )
    raise typer.Exit(status)


def _gateway(
    repository: Path, ports: Ports, host: str, port: int, api_keys: Path | None, drain_timeout: float
) -> Companion:
    """`trtdecode gateway` in front of this server. Wrong keys, a busy port or missing packages are said before it
    starts."""
    import sys

    from trtdecode.gateway.run import check_can_run
    from trtdecode.gateway.settings import read_api_keys
    from trtdecode.server.companion import Companion

    read_api_keys(api_keys)
    check_can_run(host, port)
    connect_host = "127.0.0.1" if host == "0.0.0.0" else host
    command = [sys.executable, "-c", "import sys; from trtdecode.cli import main; sys.exit(main())", "gateway"]
    command += [str(repository), "--host", host, "--port", str(port), "--triton", f"{connect_host}:{ports.grpc}"]
    command += ["--metrics", f"http://{connect_host}:{ports.metrics}/metrics", "--drain-timeout", str(drain_timeout)]
    command += ["--api-keys", str(api_keys)] if api_keys else []
    return Companion("gateway", command, log=typer.echo)


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
