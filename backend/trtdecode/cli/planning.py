"""`trtdecode plan`: what to buy, and how to configure it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("plan", rich_help_panel="Planning")(plan)


def plan(
    model: Annotated[Path, typer.Argument(help="Hugging Face config.json, or the folder that holds it.")],
    context: Annotated[int, typer.Option(min=1, help="Tokens a sequence, prompt and answer.")] = 4096,
    concurrency: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 32,
    device: Annotated[list[str] | None, typer.Option(help="Only these devices; repeatable.")] = None,
    devices: Annotated[Path | None, typer.Option(help="Device table, TOML; default the shipped one.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="Only these; repeatable.")] = None,
    kv_precision: Annotated[str, typer.Option(help="fp16, fp8, int8, u8 or f32.")] = "fp16",
    bench: Annotated[Path | None, typer.Option(help="JSON of `scripts/bench serving`: fits the efficiency.")] = None,
    bench_system: Annotated[str, typer.Option(help="System in the bench JSON.")] = "trtdecode-triton",
    bench_device: Annotated[str, typer.Option(help="Device the bench ran on.")] = "",
    api_price: Annotated[float, typer.Option(min=0, help="Dollars a million tokens elsewhere, to compare with.")] = 0.0,
    config: Annotated[bool, typer.Option("--config", help="Print the recommended config.pbtxt alone.")] = False,
) -> None:
    """Weights, KV cache, sequences that fit, bounds of decode and prefill, cost, and a config.pbtxt.

    Rows are bounds from bytes, bandwidth and FLOPs, times an efficiency: fitted to a bench, or assumed and said so.
    """
    from rich.console import Console

    from trtdecode.errors import ConfigError
    from trtdecode.plan import report
    from trtdecode.plan.devices import DEFAULT_TABLE, load_devices
    from trtdecode.plan.fit import ASSUMED_EFFICIENCY, fit_efficiency
    from trtdecode.plan.model_source import model_from_config
    from trtdecode.plan.table import plan_table

    sizes = model_from_config(model)
    table = load_devices(devices or DEFAULT_TABLE)
    unknown = set(device or []) - table.keys()
    if unknown:
        raise ConfigError(f"--device: {sorted(unknown)[0]!r} is not in the table; it has {', '.join(table)}")
    chosen = [found for name, found in table.items() if not device or name in device]
    efficiency, origin = ASSUMED_EFFICIENCY, "assumed; fit it with --bench"
    if bench is not None:
        if bench_device not in table:
            raise ConfigError(f"--bench-device: name the device the bench ran on, one of {', '.join(table)}")
        efficiency = fit_efficiency(
            bench, bench_system, sizes, table[bench_device], "int8_weight", kv_precision, context
        )
        origin = f"measured: {bench_system} in {bench.name}"
    rows = report.plan(
        sizes,
        chosen,
        context=context,
        concurrency=concurrency,
        precisions=precision or report.PREFERENCE,
        kv_precision=kv_precision,
        efficiency=efficiency,
    )
    best = report.recommend(rows)
    if config:
        typer.echo(report.config_pbtxt(best, context), nl=False)
        return
    console = Console()
    console.print(plan_table(rows, best, api_price))
    console.print(f"Weights {sizes.num_weights / 1e9:.2f} billion; efficiency {efficiency:.2f} ({origin}).")
    console.print(f"KV cache: {sizes.kv_bytes_per_token(kv_precision):.0f} bytes a token.")
    console.print(f"Recommended: {best.device.name} x {best.num_devices}, {best.precision}. config.pbtxt: --config")
