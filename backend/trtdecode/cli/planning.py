"""`trtdecode plan`: what to buy, and how to configure it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtdecode.errors import ConfigError

if TYPE_CHECKING:
    from trtdecode.plan.devices import Device

DECODER_CONTEXT = 4096
ENCODER_CONTEXT = 128


def register(app: typer.Typer) -> None:
    app.command("plan", rich_help_panel="Planning")(plan)


def plan(
    model: Annotated[Path, typer.Argument(help="Hugging Face config.json, or the folder that holds it.")],
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens a sequence, prompt and answer [4096]; of an encoder a text [128].")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Sequences, or an encoder's texts, at a time.")] = 32,
    latency_ms: Annotated[float, typer.Option(help="An encoder's, from a text to its answer under load.")] = 50.0,
    device: Annotated[list[str] | None, typer.Option(help="Only these devices; repeatable.")] = None,
    devices: Annotated[Path | None, typer.Option(help="Device table, TOML; default the shipped one.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Only these; repeatable.")] = None,
    kv_precision: Annotated[str, typer.Option(help="fp16, fp8, int8, u8 or f32.")] = "fp16",
    bench: Annotated[
        Path | None, typer.Option(help="JSON of `scripts/bench serving` or `encoder`: fits the efficiency.")
    ] = None,
    bench_system: Annotated[str, typer.Option(help="System in the serving bench's JSON.")] = "trtdecode-triton",
    bench_device: Annotated[str, typer.Option(help="Device the bench ran on.")] = "",
    api_price: Annotated[float, typer.Option(min=0, help="Dollars a million tokens elsewhere, to compare with.")] = 0.0,
    config: Annotated[bool, typer.Option("--config", help="Print the recommended config.pbtxt alone.")] = False,
) -> None:
    """Memory, what fits, bounds, cost, and a config.pbtxt: of a decoder with its KV cache, of an encoder with the sizes
    for Triton's dynamic batcher.

    Rows are bounds from bytes, bandwidth and FLOPs, times an efficiency: fitted to a bench, or assumed and said so.
    """
    from trtdecode.plan.devices import DEFAULT_TABLE, load_devices
    from trtdecode.plan.model_source import is_encoder, read_config

    raw, where = read_config(model)
    table = load_devices(devices or DEFAULT_TABLE)
    unknown = set(device or []) - table.keys()
    if unknown:
        raise ConfigError(f"--device: {sorted(unknown)[0]!r} is not in the table; it has {', '.join(table)}")
    if bench is not None and bench_device not in table:
        raise ConfigError(f"--bench-device: name the device the bench ran on, one of {', '.join(table)}")
    asked = _Asked(
        [found for name, found in table.items() if not device or name in device],
        table.get(bench_device),
        context,
        concurrency,
        precision,
        bench,
        api_price,
        config,
    )
    if is_encoder(raw):
        _plan_encoder(raw, where, asked, latency_ms / 1000)
    else:
        _plan_decoder(raw, where, asked, kv_precision, bench_system)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What both kinds of plans are told."""

    devices: list[Device]
    bench_device: Device | None
    context: int | None
    concurrency: int
    precisions: list[str] | None
    bench: Path | None
    api_price: float
    config_only: bool


def _plan_decoder(raw: dict[str, Any], where: str, asked: _Asked, kv_precision: str, bench_system: str) -> None:
    from rich.console import Console

    from trtdecode.plan import report
    from trtdecode.plan.fit import ASSUMED_EFFICIENCY, fit_efficiency
    from trtdecode.plan.model_source import model_from_fields
    from trtdecode.plan.table import plan_table

    sizes = model_from_fields(raw, where)
    context = asked.context or DECODER_CONTEXT
    efficiency, origin = ASSUMED_EFFICIENCY, "assumed; fit it with --bench"
    if asked.bench is not None and asked.bench_device is not None:
        efficiency = fit_efficiency(
            asked.bench, bench_system, sizes, asked.bench_device, "int8_weight", kv_precision, context
        )
        origin = f"measured: {bench_system} in {asked.bench.name}"
    rows = report.plan(
        sizes,
        asked.devices,
        context=context,
        concurrency=asked.concurrency,
        precisions=asked.precisions or report.PREFERENCE,
        kv_precision=kv_precision,
        efficiency=efficiency,
    )
    best = report.recommend(rows)
    if asked.config_only:
        typer.echo(report.config_pbtxt(best, context), nl=False)
        return
    console = Console()
    console.print(plan_table(rows, best, asked.api_price))
    console.print(f"Weights {sizes.num_weights / 1e9:.2f} billion; efficiency {efficiency:.2f} ({origin}).")
    console.print(f"KV cache: {sizes.kv_bytes_per_token(kv_precision):.0f} bytes a token.")
    console.print(f"Recommended: {best.device.name} x {best.num_devices}, {best.precision}. config.pbtxt: --config")


def _plan_encoder(raw: dict[str, Any], where: str, asked: _Asked, latency: float) -> None:
    from rich.console import Console

    from trtdecode.plan import encoder_report
    from trtdecode.plan.encoder_capacity import ENCODER_PRECISIONS
    from trtdecode.plan.fit import ASSUMED_EFFICIENCY, fit_encoder_efficiency
    from trtdecode.plan.model_source import encoder_from_fields
    from trtdecode.plan.table import encoder_table

    encoder = encoder_from_fields(raw, where)
    efficiency, origin = ASSUMED_EFFICIENCY, "assumed; fit it with --bench"
    if asked.bench is not None and asked.bench_device is not None:
        efficiency = fit_encoder_efficiency(asked.bench, encoder, asked.bench_device, "fp16")
        origin = f"measured: batched in {asked.bench.name}"
    rows = encoder_report.plan_encoder(
        encoder,
        asked.devices,
        tokens=asked.context or min(ENCODER_CONTEXT, encoder.num_positions),
        concurrency=asked.concurrency,
        latency=latency,
        precisions=asked.precisions or ENCODER_PRECISIONS,
        efficiency=efficiency,
    )
    best = encoder_report.recommend_encoder(rows)
    if asked.config_only:
        typer.echo(encoder_report.encoder_config_pbtxt(best), nl=False)
        return
    console = Console()
    console.print(encoder_table(rows, best, asked.api_price))
    console.print(f"Weights {encoder.num_weights / 1e6:.1f} million; efficiency {efficiency:.2f} ({origin}).")
    console.print(
        f"Texts of {best.tokens} tokens, {asked.concurrency} at a time, answered within {latency * 1000:g} ms."
    )
    console.print(f"Recommended: {best.device.name}, {best.precision}. config.pbtxt: --config")
