"""`trtdecode build` and `layers`: TensorRT engines of a model version, for any GPU the builder knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtdecode.errors import ConfigError
from trtdecode.manifest import rank_dirs, read_manifest

if TYPE_CHECKING:
    from rich.console import Console
    from trtbuild.engine.build_options import BuildOptions, BuildReport
    from trtbuild.quantize.recipe import Recipe

    from trtdecode.plan.devices import Device


def register(app: typer.Typer) -> None:
    app.command("build", rich_help_panel="Models")(build)
    app.command("layers", rich_help_panel="Models")(layers)


def build(
    precision: Annotated[str, typer.Option(help="fp16, bf16, fp8, int8, int8_weight or int4.")],
    sm: Annotated[int, typer.Option(help="Compute capability without the dot: 89 for 8.9.")],
    version_dir: Annotated[
        Path | None, typer.Argument(metavar="VERSION", help="model_repository/NAME/VERSION.")
    ] = None,
    onnx: Annotated[Path | None, typer.Option(help="Build this stateless ONNX model instead of a version.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="With --onnx: folder for the engine; default NAME-engine.")
    ] = None,
    dim: Annotated[list[str] | None, typer.Option(help="With --onnx: NAME=MIN:OPT:MAX of a dynamic dimension.")] = None,
    samples: Annotated[list[Path] | None, typer.Option(help="With --onnx: .npz of inputs, to calibrate with.")] = None,
    flavour: Annotated[str, typer.Option(help="tensorrt, tensorrt-rtx, or auto: what is installed.")] = "auto",
    mixed: Annotated[Path | None, typer.Option(help="File of `pattern: precision` exceptions.")] = None,
    int4_method: Annotated[str, typer.Option(help="rtn, awq or gptq.")] = "awq",
    act_order: Annotated[bool, typer.Option("--act-order", help="GPTQ: most active columns first.")] = False,
    smoothing: Annotated[float, typer.Option(min=0, max=1, help="SmoothQuant's strength for int8; 0: off.")] = 0.5,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Of the serving configuration.")] = 64,
    max_num_batched_tokens: Annotated[int, typer.Option(min=1, help="Of the serving configuration.")] = 512,
    calibration: Annotated[Path | None, typer.Option(help="Text file, one sample a line; default shipped.")] = None,
    activation_range: Annotated[str, typer.Option(help="absmax or percentile: what input scales cover.")] = "absmax",
    percentile: Annotated[float, typer.Option(help="Of |input|, with --activation-range percentile.")] = 99.99,
    limits: Annotated[Path | None, typer.Option(help="TOML of largest divergences; default shipped.")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip perplexity and divergence limits.")] = False,
    allow_unfused: Annotated[bool, typer.Option("--allow-unfused", help="Report a missing fusion, go on.")] = False,
) -> None:
    """Build the engines of a model version that are missing or no longer fit.

    The decoder is cut at its attention operators; each piece becomes one engine. What the compiler fused is read from
    its own log and checked, and the quantised model is compared with the f32 one. Built from the f32 graph where the
    version has one (`trtdecode import --precision f32`), else from its INT8 weights.

    With `--onnx` any stateless model becomes one engine by the same rules, precisions, checks and report.
    """
    from rich.console import Console
    from trtbuild.build_engines import BuildOptions, Recipe
    from trtbuild.quantize.mixed import MixedPrecision, read_mixed
    from trtbuild.quantize.quality import read_limits

    console = Console(stderr=True, highlight=False)
    recipe = Recipe(
        precision,
        mixed=read_mixed(mixed) if mixed else MixedPrecision(),
        int4_method=int4_method,
        act_order=act_order,
        smoothing=smoothing,
        activation_range=activation_range,
        percentile=percentile,
    )
    if onnx is not None:
        _build_onnx(onnx, output, sm, flavour, recipe, dim or [], samples or [], allow_unfused)
        return
    if version_dir is None:
        raise ConfigError("VERSION: missing; give a version folder, or a model with --onnx FILE")
    options = BuildOptions(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        verify=not no_verify,
        allow_unfused=allow_unfused,
        limits=read_limits(limits) if limits else None,
        calibration_texts=_lines(calibration) if calibration else (),
    )
    for folder in rank_dirs(version_dir, read_manifest(version_dir)) or (version_dir,):
        _print_report(_build_version(folder, precision, sm, flavour, recipe, options, console))


def _build_version(
    folder: Path, precision: str, sm: int, flavour: str, recipe: Recipe, options: BuildOptions, console: Console
) -> BuildReport:
    from trtbuild.build_engines import build_engines

    with console.status("starting") as status:
        return build_engines(
            folder,
            precision,
            sm,
            flavour=flavour,
            recipe=recipe,
            options=options,
            progress=lambda stage, done, total: status.update(f"{stage} {done}/{total}"),
            report=status.update,
        )


def _build_onnx(
    onnx: Path,
    output: Path | None,
    sm: int,
    flavour: str,
    recipe: Recipe,
    dims: list[str],
    samples: list[Path],
    allow_unfused: bool,
) -> None:
    from trtbuild.build_onnx import OnnxOptions, build_onnx
    from trtbuild.quantize.calibrate_onnx import read_samples

    options = OnnxOptions(
        dimensions=dict(map(_dimension, dims)), allow_unfused=allow_unfused, samples=read_samples(samples)
    )
    folder = output or onnx.with_name(f"{onnx.stem}-engine")
    result = build_onnx(onnx, folder, recipe.precision, sm, flavour=flavour, recipe=recipe, options=options)
    what = f"built ({result.reason})" if result.reason else "reused"
    typer.echo(f"{result.engine_path}: {what}, {result.num_bytes / 1e6:.1f} MB in {result.seconds:.1f} s")
    for rule, count in result.rewrites.items():
        typer.echo(f"  rewritten {count} times: {rule}")
    for check in result.checks:
        if not check.holds:
            typer.echo(f"  not fused: {check.pattern} ({', '.join(check.nodes)}) in {', '.join(check.kernels)}")
    for name, error in result.errors.items():
        typer.echo(f"  {name}: {error:.2%} from float32 over the samples")
    typer.echo(f"layers: {result.layers_path}")


def _dimension(text: str) -> tuple[str, tuple[int, int, int]]:
    """`NAME=MIN:OPT:MAX`."""
    name, _, sizes = text.partition("=")
    try:
        low, best, high = (int(size) for size in sizes.split(":"))
    except ValueError:
        raise ConfigError(f"--dim {text!r}: must be NAME=MIN:OPT:MAX, such as batch=1:8:32") from None
    return name, (low, best, high)


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(line for line in path.read_text("utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--calibration {path}: not readable as UTF-8 text ({error})") from error


def _print_report(result: BuildReport) -> None:
    """What was built and why, what the compiler did not fuse, and how far the result is from f32."""
    from collections import Counter

    typer.echo(
        f"{result.directory}: {len(result.built)} engines built, {len(result.reused)} reused, "
        f"{result.num_bytes / 1e6:.0f} MB in {result.seconds:.1f} s ({result.flavour} {result.builder_version}, "
        f"SM {result.sm}, {result.precision})"
    )
    for reason, count in Counter(result.built.values()).items():
        typer.echo(f"  {count} engines: {reason}")
    broken = Counter((check.pattern, check.kernels) for check in result.checks if not check.holds)
    typer.echo(f"fusions: {len(result.checks) - broken.total()} of {len(result.checks)} expectations hold")
    for (pattern, kernels), count in broken.items():
        typer.echo(f"  not fused, {count} times: {pattern} ({', '.join(kernels)})")
    if result.quality is not None:
        quality = result.quality
        typer.echo(
            f"against f32: perplexity {quality.perplexity:.2f} ({quality.perplexity_ratio:.4f} times), "
            f"KL divergence {quality.kl_divergence:.5f} nats, same likeliest token {quality.argmax_agreement:.1%}"
        )
    if result.layers_path is not None:
        typer.echo(f"layers: {result.layers_path}")


def layers(
    report: Annotated[Path, typer.Argument(help="A layer report that `trtdecode build` named, or a version folder.")],
    diff: Annotated[Path | None, typer.Option(help="Another report: print only what differs.")] = None,
    device: Annotated[
        str, typer.Option(help="Roofline for this GPU of the planner's table; auto: one of the SM.")
    ] = "",
) -> None:
    """Show which kernels the compiler made: operators fused in each, and their types.

    With `--diff` two builds compare (TensorRT versions, SMs, precisions): `-` is only in the first, `+` only in the
    second; exit status 1 says that they differ. With `--device` bytes, operations and lower bounds are added.
    """
    from trtbuild.engine.cost_table import cost_diff_lines, cost_lines, fusion_lines
    from trtbuild.engine.layer_report import read_report
    from trtbuild.engine.layer_table import diff_lines, table_lines

    paths = sorted((report / "reports").glob("layers-*.json")) if report.is_dir() else [report]
    if diff is not None:
        old, new = read_report(_only(paths, report)), read_report(diff)
        lines = list(diff_lines(old, new))
        if lines and device:
            lines += cost_diff_lines(old, new, _device(device, old.sm))
        typer.echo("\n".join(lines) if lines else "the same kernels")
        raise typer.Exit(bool(lines))
    if not paths:
        raise ConfigError(f"{report}: has no layer report; `trtdecode build` writes one")
    for path in paths:
        found = read_report(path)
        typer.echo("\n".join([*table_lines(found), *fusion_lines(found)]))
        if device:
            typer.echo("\n".join(cost_lines(found, _device(device, found.sm))))


def _device(name: str, sm: int) -> Device:
    from trtbuild.engine.roofline import device_for

    return device_for(sm, "" if name == "auto" else name)


def _only(paths: list[Path], report: Path) -> Path:
    if len(paths) != 1:
        names = ", ".join(path.name for path in paths) or "none"
        raise ConfigError(f"{report}: not exactly one layer report ({names}); name the file")
    return paths[0]
