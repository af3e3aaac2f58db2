"""Makes the modules of scripts/lib and scripts/gpulib importable; they are programs, not packages."""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "lib"), str(SCRIPTS / "gpulib")]
