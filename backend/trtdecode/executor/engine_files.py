"""Whether the engines on disk are the ones wanted: each difference is a cache miss with a one-line reason.

A serialized engine belongs to one builder version, one compute capability and one graph. `segments.json` records what
each was built from, field by field; the build skips those that fit and the loader refuses those that do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from trtdecode import support
from trtdecode.errors import ManifestError
from trtdecode.executor.engine_steps import EngineFile, EngineSteps, read_steps
from trtdecode.manifest import Manifest, sha256_of

#: Fields of an engine's key, in the order in which a difference is reported.
KEY_FIELDS = (
    "flavour",
    "builder_version",
    "sm",
    "precision",
    "graph",  # digest of ONNX file and external data
    "profiles",
    "recipe",  # quantisation and mixed precision
    "calibration",  # digest of the calibration text
)


def graph_digest(manifest: Manifest, graph_file: str) -> str:
    """One digest of a graph and its external data, from the manifest's own digests."""
    parts = [f"{name}:{entry.sha256}" for name, entry in sorted(manifest.files.items()) if name.startswith(graph_file)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def miss_reason(directory: Path, file_name: str, recorded: EngineFile | None, wanted: Mapping[str, str]) -> str | None:
    """Why an engine cannot be used, in one line; None when it fits.

    Args:
        directory: the engine folder.
        recorded: its entry in segments.json; None where there is none.
        wanted: the key that it should have; only the fields given are compared.
    """
    if recorded is None:
        return "no record of it in segments.json"
    for field in KEY_FIELDS:
        if field not in wanted:
            continue
        if field not in recorded.key:
            return f"no record of its {field}"
        if recorded.key[field] != wanted[field]:
            return f"{field} is {_short(recorded.key[field])}, now {_short(wanted[field])}"
    path = directory / file_name
    if not path.is_file():
        return "file is missing"
    size = path.stat().st_size
    if size == 0:
        return "file is empty (0 bytes)"
    if size != recorded.num_bytes:
        return f"file has {size} bytes of {recorded.num_bytes}"
    if sha256_of(path) != recorded.sha256:
        return "file has changed (sha256 differs)"
    return None


def load_engine_steps(
    version_dir: Path,
    manifest: Manifest,
    precision: str,
    sm: int,
    *,
    flavour: str,
    builder_version: str,
    max_num_seqs: int = 0,
    max_num_batched_tokens: int = 0,
    build_missing: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> EngineSteps:
    """The engines of a version for this GPU, checked; built first where that is allowed and needed.

    Args:
        flavour: of the runtime that will load them, with `builder_version`.
        max_num_seqs, max_num_batched_tokens: the serving limits; engines must hold them. 0: whatever they hold.
        build_missing: build what does not fit (config parameter `build_missing_engines`) instead of refusing.
        report: gets one line for each reason and each step of a build.

    Raises:
        ManifestError: the engines do not fit and may not be built; names both sides and the command.
        UnsupportedError, BuildError: they may be built, but cannot be.
    """
    support.check_engine(precision, sm, flavour)
    reason = engines_problem(
        version_dir,
        manifest,
        precision,
        sm,
        flavour=flavour,
        builder_version=builder_version,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    directory = version_dir / support.engine_directory(precision, sm)
    if reason is None:
        return read_steps(directory)
    if not build_missing:
        raise ManifestError(
            f"{directory}: {reason}; build with `trtdecode build {version_dir} --precision {precision} --sm {sm} "
            f"--flavour {flavour}`, or set build_missing_engines"
        )
    # The builder is an optional part; see DESIGN, dependency rule.
    from trtbuild.build_engines import BuildOptions, build_engines

    report(f"engines for SM {sm} in {precision}: {reason}; building")
    defaults = BuildOptions()
    options = BuildOptions(
        max_num_seqs=max_num_seqs or defaults.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or defaults.max_num_batched_tokens,
        verify=False,  # a server that is wanted now; `trtdecode build` measures
    )
    build_engines(version_dir, precision, sm, flavour=flavour, options=options, report=report)
    return read_steps(directory)


def engines_problem(
    version_dir: Path,
    manifest: Manifest,
    precision: str,
    sm: int,
    *,
    flavour: str,
    builder_version: str,
    max_num_batched_tokens: int = 0,
) -> str | None:
    """The first reason why a version's engines cannot be used here, in one line; None when all fit.

    Args:
        max_num_batched_tokens: tokens that a step may have; 0: not asked.
    """
    directory = version_dir / support.engine_directory(precision, sm)
    try:
        steps = read_steps(directory)
    except ManifestError as error:
        return str(error).split("; build the engines again")[0]
    if steps.source_graph not in manifest.graphs:
        return f"built from graph {steps.source_graph!r}, which this version no longer has"
    if steps.max_tokens < max_num_batched_tokens:
        return f"built for {steps.max_tokens} tokens a step, max_num_batched_tokens is {max_num_batched_tokens}"
    wanted = {
        "flavour": flavour,
        "builder_version": builder_version,
        "sm": str(sm),
        "precision": precision,
        "graph": graph_digest(manifest, manifest.graph_file(steps.source_graph)),
    }
    for name in steps.segment_files:
        reason = miss_reason(directory, name, steps.engines.get(name), wanted)
        if reason is not None:
            return f"{name}: {reason}"
    return None


def _short(value: str) -> str:
    """Digests are shown by their first twelve characters, other long values by their first eighty."""
    is_digest = len(value) == 64 and all(character in "0123456789abcdef" for character in value)
    return value[:12] if is_digest else value[:80]
