"""Are the TensorRT engines whole, built from this graph, and made of kernels that were listed and checked?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtdecode.executor.engine_files import engines_problem
from trtdecode.manifest import EngineSet, Manifest, rank_dirs, read_manifest
from trtdecode.promote.gate import Context, Gate


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Looks at every engine set of the manifest, or of the ranks' manifests; works without a GPU.

    The build itself refuses a fusion that does not hold, and writes the layer report only then: what is left to check
    is that engines and report belong to this graph. A version without engines serves on the CPU, or builds them at load
    where `build_missing_engines` is on.
    """
    figures: dict[str, Any] = {}
    for folder in rank_dirs(context.version_dir, context.manifest) or (context.version_dir,):
        manifest = read_manifest(folder)
        for engines in manifest.engines:
            name = (folder / engines.directory).relative_to(context.version_dir).as_posix()
            problem, num_kernels = _look_at(folder, manifest, engines)
            if problem:
                return False, f"{name}: {problem}", figures
            figures[name] = {"segments": len(engines.segments), "kernels": num_kernels}
    if not figures:
        return True, "the version has no engines: nothing to check", {}
    return True, f"{len(figures)} engine set(s) fit their graph; their fusions held when they were built", figures


def _look_at(folder: Path, manifest: Manifest, engines: EngineSet) -> tuple[str, int]:
    """What is wrong with one set, or "", and the kernels that its report lists."""
    from trtbuild.engine.layer_report import read_report

    problem = engines_problem(
        folder,
        manifest,
        engines.precision,
        engines.sm,
        flavour=engines.flavour,
        builder_version=engines.builder_version,
    )
    if problem is not None:
        return f"{problem}; build them again with `trtdecode build`", 0
    report = read_report(folder / "reports" / f"layers-sm{engines.sm}-{engines.precision}.json")
    kernels = sum(len(segment.kernels) for segment in report.segments)
    if not kernels or len(report.segments) != len(engines.segments):
        evidence = f"the layer report has {len(report.segments)} segments and {kernels} kernels"
        return f"{evidence}, the set has {len(engines.segments)} engines", 0
    return "", kernels


GATE = Gate("engines", ask)
