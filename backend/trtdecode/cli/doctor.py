"""`trtdecode doctor`: what holds a running server back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("doctor", rich_help_panel="Measuring")(doctor)


def doctor(
    model: Annotated[str | None, typer.Argument(help="Only this model; default all that our backend serves.")] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(help="http://host:port/metrics; repeat for a DCGM exporter. [http://127.0.0.1:8002/metrics]"),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="The server's log; `trtdecode serve` prints its name.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to watch.")] = 10.0,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 0.5,
    device: Annotated[str, typer.Option(help="GPU of the table of `trtdecode plan`; none: a CPU.")] = "",
    precision: Annotated[str, typer.Option(help="Of the weights, with --device.")] = "fp16",
    record: Annotated[Path | None, typer.Option(help="Keep what was read, for somebody else to look at.")] = None,
    recording: Annotated[Path | None, typer.Option(help="Diagnose such a file instead of a server.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a model.")] = False,
) -> None:
    """Watch a server for some seconds and name its bottleneck: queue, KV blocks, host, compute or memory bandwidth; of
    an encoder: delay, batch size, host or compute.

    Each answer comes with the figures that decided and the next step.
    """
    import dataclasses

    from trtdecode.doctor import readings, tree
    from trtdecode.doctor.finding import Limits
    from trtdecode.errors import ConfigError

    limits = Limits(ridge_tokens=_ridge(device, precision)) if device else Limits()
    if recording is not None:
        texts = readings.read_recording(recording)
    else:
        texts = readings.watch(lambda: _read(metrics or ["http://127.0.0.1:8002/metrics"]), seconds, interval)
    if record is not None:
        readings.write_recording(record, texts)
    scrapes = readings.scrapes_of(texts)
    served = readings.models(scrapes[-1]) if scrapes else []
    if not served or (model and model not in served):
        raise ConfigError(f"no metrics of {model or 'any model of ours'}; there are {', '.join(served) or 'none'}")
    lines = _lines(log) if log else []
    for name in [model] if model else served:
        seen = readings.Readings(scrapes, name, lines)
        finding = tree.diagnose(seen, limits)
        if as_json:
            typer.echo(json.dumps({"model": name, "seconds": seen.seconds, **dataclasses.asdict(finding)}))
            continue
        typer.echo(f"{name}: {finding.bottleneck}")
        for text in finding.evidence:
            typer.echo(f"  seen  {text}")
        typer.echo(f"  next  {finding.next_step}")
        for text in finding.also:
            typer.echo(f"  log   {text}")


def _read(urls: list[str]) -> str:
    import urllib.request

    from trtdecode.errors import ServerError

    text = ""
    for url in urls:
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                text += response.read().decode() + "\n"
        except (OSError, ValueError) as error:
            raise ServerError(f"{url} does not answer ({error}); name the server's /metrics with --metrics") from error
    return text


def _lines(log: Path) -> list[str]:
    from trtdecode.errors import ConfigError

    try:
        return log.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise ConfigError(f"--log {log}: not readable ({error.strerror})") from error


def _ridge(name: str, precision: str) -> float:
    """Tokens a step at which multiplying takes as long as reading the weights: two FLOPs a weight and token."""
    from trtdecode.errors import ConfigError
    from trtdecode.plan.capacity import BYTES_PER_WEIGHT, MATMUL_TYPE
    from trtdecode.plan.devices import load_devices

    table = load_devices()
    if name not in table:
        raise ConfigError(f"--device: {name!r} is not in the table; it has {', '.join(table)}")
    if precision not in BYTES_PER_WEIGHT:
        raise ConfigError(f"--precision: got {precision!r}; must be one of {', '.join(BYTES_PER_WEIGHT)}")
    device = table[name]
    flops = device.matmul_flops(MATMUL_TYPE[precision])
    return round(flops * BYTES_PER_WEIGHT[precision] / (2 * device.bandwidth))
