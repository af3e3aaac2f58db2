"""Which of a version's graphs the engines are built from.

Floats where the version has them; else codes are expanded to floats (expand_codes.py), which then take the recipe's own
scheme. INT4 engines keep a checkpoint's own codes, exactly (rewrite/): 4 bits as INT4, 5 to 8 bits as two halves.
"""

from __future__ import annotations

from trtdecode.errors import ManifestError
from trtdecode.manifest import Manifest

#: The graph whose codes INT4 engines keep.
KEPT = "int4"


def source_name(manifest: Manifest, precision: str) -> str:
    """The manifest's name of the graph to build `precision` from.

    Raises:
        ManifestError: the version has none of them.
    """
    wanted = (KEPT, "f32", "int8") if precision == "int4" else ("f32", "int8", KEPT)
    for name in wanted:
        if name in manifest.graphs:
            return name
    raise ManifestError(
        f"this version has no graph to build {precision} engines from (present: {', '.join(sorted(manifest.graphs))}); "
        "import it again with `trtdecode import --precision f32`"
    )


def reference_name(manifest: Manifest, source: str) -> str:
    """The graph that parity compares with and calibration runs: floats where there are any."""
    return "f32" if "f32" in manifest.graphs else source
