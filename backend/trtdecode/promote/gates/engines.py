"""Are the TensorRT engines whole, built from this graph, and made of kernels that were listed and checked?"""

from __future__ import annotations

from typing import Any

from trtdecode.executor.engine_files import engines_problem
from trtdecode.promote.gate import Context, Gate


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Looks at every engine set of the manifest; works without a GPU.

    The build itself refuses a fusion that does not hold, and writes the layer report only then: what is left to check
    is that engines and report belong to this graph. A version without engines serves on the CPU, or builds them at load
    where `build_missing_engines` is on.
    """
    manifest = context.manifest
    if not manifest.engines:
        return True, "the version has no engines: nothing to check", {}
    from trtbuild.engine.layer_report import read_report

    figures: dict[str, Any] = {}
    for engines in manifest.engines:
        problem = engines_problem(
            context.version_dir,
            manifest,
            engines.precision,
            engines.sm,
            flavour=engines.flavour,
            builder_version=engines.builder_version,
        )
        if problem is not None:
            return False, f"{engines.directory}: {problem}; build them again with `trtdecode build`", figures
        report = read_report(context.version_dir / "reports" / f"layers-sm{engines.sm}-{engines.precision}.json")
        kernels = sum(len(segment.kernels) for segment in report.segments)
        if not kernels or len(report.segments) != len(engines.segments):
            evidence = f"the layer report has {len(report.segments)} segments and {kernels} kernels"
            return False, f"{engines.directory}: {evidence}, the set has {len(engines.segments)} engines", figures
        figures[engines.directory] = {"segments": len(engines.segments), "kernels": kernels}
    return True, f"{len(figures)} engine set(s) fit their graph; their fusions held when they were built", figures


GATE = Gate("engines", ask)
