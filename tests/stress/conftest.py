"""The soak and the fuzz are commands (scripts/soak, scripts/fuzz); their tests run them short."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts" / "stresslib"))
