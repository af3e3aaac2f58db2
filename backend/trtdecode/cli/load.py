"""`trtdecode loadtest`; `scripts/loadtest` calls it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from trtdecode.errors import ConfigError, LoadError


def register(app: typer.Typer) -> None:
    app.command("loadtest", rich_help_panel="Measuring")(loadtest)


def loadtest(
    model: Annotated[str, typer.Argument(help="Served model.")] = "smollm2",
    grpc: Annotated[str, typer.Option(help="gRPC host:port of a running server.")] = "",
    metrics: Annotated[str, typer.Option(help="Its http://host:port/metrics; none: counts are not compared.")] = "",
    repository: Annotated[
        Path | None, typer.Option(help="Start a server of our own on this repository instead.")
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Levels of the closed loop, comma-separated.")] = "1,8",
    rate: Annotated[str, typer.Option(help="Levels of the open loop in requests a second, comma-separated.")] = "",
    requests: Annotated[int, typer.Option(min=1, help="Requests a level.")] = 32,
    prompt_words: Annotated[int, typer.Option(min=1)] = 64,
    output_tokens: Annotated[int, typer.Option(min=1)] = 64,
    poisson: Annotated[bool, typer.Option(help="Lengths are Poisson with those means.")] = False,
    shared_prefix: Annotated[int, typer.Option(min=0, help="Words that every prompt begins with.")] = 0,
    turns: Annotated[int, typer.Option(min=1, help="Requests of one conversation.")] = 1,
    cancels: Annotated[float, typer.Option(min=0, max=1, help="Share of requests that are cancelled.")] = 0.0,
    burst: Annotated[float, typer.Option(min=0, help="0.3: +30 % in the middle third (open loop).")] = 0.0,
    seed: Annotated[int, typer.Option()] = 0,
    trace: Annotated[Path | None, typer.Option(help="Replay this JSONL trace.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the requests as a JSONL trace.")] = None,
    slo: Annotated[
        str, typer.Option(help="Such as ttft_p95=500ms,itl_p95=50ms,error_rate=1%; sets the exit status.")
    ] = "",
    perf_analyzer: Annotated[bool, typer.Option(help="Run perf_analyzer beside our client.")] = True,
    tool_folder: Annotated[Path, typer.Option(help="Where perf_analyzer is kept.")] = Path(".cache/perf_analyzer"),
    stop_at_eos: Annotated[bool, typer.Option(help="Let answers end by themselves.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write the report.")] = None,
) -> None:
    """Load a model and report what its clients see: TTFT, inter-token latency, tokens/s, goodput, errors.

    Works with any Triton model that has the vLLM backend's tensors. Exit status 1: the SLO was missed, or the
    client's counts are not the server's.
    """
    from rich.console import Console
    from rich.progress import Progress

    from trtdecode.loadtest import main, report
    from trtdecode.loadtest.records import Slo
    from trtdecode.loadtest.traffic import Shot, Traffic, generate, read_trace, write_trace

    if bool(grpc) == (repository is not None):
        raise ConfigError("give either --grpc of a running server, or --repository to start one")
    levels = _levels(rate or concurrency, "--rate" if rate else "--concurrency")
    traffic = Traffic(
        num_requests=requests,
        prompt_words=prompt_words,
        output_tokens=output_tokens,
        poisson_lengths=poisson,
        shared_prefix_words=shared_prefix,
        turns=turns,
        cancel_fraction=cancels,
        burst=burst,
        seed=seed,
    )

    def shots_at(level: float) -> list[Shot]:
        if trace is not None:
            return read_trace(trace)
        return generate(dataclasses.replace(traffic, rate=level if rate else 0.0))

    if record is not None:
        write_trace(record, shots_at(levels[0]))
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a log file has room for the table
    with _server(repository, grpc, metrics) as (address, metrics_url), Progress(console=console, transient=True) as bar:
        task = bar.add_task("requests", total=None)
        outcome = main.run_plan(
            main.Plan(
                url=address,
                metrics_url=metrics_url,
                model=model,
                levels=levels,
                open_loop=bool(rate),
                slo=Slo.parse(slo),
                ignore_eos=not stop_at_eos,
                tool_folder=tool_folder if perf_analyzer else None,
                perf_requests=requests,
            ),
            shots_at,
            on_level=lambda rows: console.print(report.terminal_table(rows[-1:])),
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(report.terminal_table(outcome.result["levels"]))
    if json_file is not None:
        main.write_json(json_file, outcome.result)
    if html_file is not None:
        html_file.write_text(report.html_page(outcome.result), "utf-8")
    problems = outcome.result["slo_misses"] + outcome.result["disagreements"]
    if problems:
        raise LoadError("; ".join(problems))


def _levels(text: str, option: str) -> tuple[float, ...]:
    try:
        levels = tuple(float(part) for part in text.split(","))
    except ValueError:
        levels = ()
    if not levels or min(levels) <= 0:
        raise ConfigError(f"{option}: got {text!r}; write numbers above 0, separated by commas")
    return levels


def _server(repository: Path | None, grpc: str, metrics: str) -> Any:
    """A context manager that gives (gRPC address, metrics address)."""
    import contextlib

    from trtdecode.server.launch import TritonServer

    @contextlib.contextmanager
    def own() -> Any:
        assert repository is not None, "the caller has checked"
        with TritonServer(repository) as server:
            yield server.grpc_address, f"http://{server.metrics_address}/metrics"

    return contextlib.nullcontext((grpc, metrics or None)) if repository is None else own()
