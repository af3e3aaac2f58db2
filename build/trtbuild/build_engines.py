"""Graph -> engines for one precision and one SM: `trtdecode build`, and the server when an engine is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from trtdecode import support
from trtdecode.errors import ConfigError
from trtdecode.manifest import Manifest, read_manifest

from trtbuild.engine.build_options import BuildOptions, BuildReport, Progress
from trtbuild.engine.decoder_job import DecoderJob, Target
from trtbuild.engine.flavour import load_tensorrt, resolve_flavour
from trtbuild.engine.locks import build_lock
from trtbuild.engine.profiles import token_profiles
from trtbuild.engine.source_graph import source_name
from trtbuild.quantize.recipe import Recipe

__all__ = ["BuildOptions", "BuildReport", "Recipe", "build_engines"]


def build_engines(
    version_dir: Path,
    precision: str,
    sm: int,
    *,
    flavour: str = "auto",
    recipe: Recipe | None = None,
    options: BuildOptions | None = None,
    progress: Progress = lambda stage, done, total: None,
    report: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Builds the engines of a model version that are missing or do not fit, and records them in its manifest.

    Args:
        version_dir: a folder that `trtdecode import` wrote. Floats are preferred, INT8 weights do, and precision int4
            keeps a checkpoint's own codes.
        precision: a key of `support.ENGINE_PRECISIONS`.
        sm: compute capability without the dot.
        flavour: "auto", "tensorrt" or "tensorrt-rtx".
        recipe: quantisation methods and exceptions; default `Recipe(precision)`.
        progress: called as (stage, done, total).
        report: gets one line per engine that is built, with the reason, and per wait.

    Raises:
        UnsupportedError: the combination is refused, or an operator is not TensorRT's.
        ManifestError: the version folder has no graph to build from.
        ConfigError: the version is an encoder.
        BuildError: the builder failed, a required fusion is missing, or the parity limits are broken.
    """
    started = time.monotonic()
    flavour = resolve_flavour(flavour, sm)
    support.check_engine(precision, sm, flavour)
    options = options or BuildOptions()
    profiles = token_profiles(options.max_num_seqs, options.max_num_batched_tokens)
    _check_task(version_dir, read_manifest(version_dir))
    source_name(read_manifest(version_dir), precision)
    target = Target(sm, load_tensorrt(flavour), recipe or Recipe(precision), profiles)
    directory = version_dir / support.engine_directory(precision, sm)
    with build_lock(directory, on_wait=lambda: report(f"{directory}: waiting for another build")):
        # Read under the lock: another build may have changed the manifest while this one waited.
        job = DecoderJob(version_dir, read_manifest(version_dir), target, options, progress, report)
        result = job.run()
    result.seconds = time.monotonic() - started
    return result


def _check_task(version_dir: Path, manifest: Manifest) -> None:
    if manifest.spec.task != "generate":
        (graph, *_) = manifest.graphs.values()
        raise ConfigError(
            f"{version_dir}: task {manifest.spec.task}; an encoder is one engine without attention kernels of ours: "
            f"build it with `trtdecode build --onnx {version_dir / graph}`"
        )
