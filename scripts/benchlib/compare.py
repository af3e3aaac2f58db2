"""`scripts/bench compare BASE.json NEW.json`: ratios of two runs of `bench serving`; status 1 beyond the tolerance.

Two runs on a drifting machine differ by 15 % without a cause. So each system is first divided by what drifts alike: the
`--reference` system of the same run, where both runs have it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

DEFAULT_TOLERANCE = 0.15


def compare(base: dict[str, Any], new: dict[str, Any], system: str, reference: str | None) -> dict[str, float]:
    """New over base by concurrency, each relative to the reference system where one is given.

    Raises:
        KeyError: a system is missing in one of the runs.
    """
    ratios = {}
    for n, row in new["systems"][system].items():
        old = base["systems"][system].get(n)
        if n == "about" or old is None:
            continue
        ratio = row["decode_tokens_per_s"] / old["decode_tokens_per_s"]
        if reference is not None:
            drift = (
                new["systems"][reference][n]["decode_tokens_per_s"]
                / base["systems"][reference][n]["decode_tokens_per_s"]
            )
            ratio /= drift
        ratios[n] = ratio
    return ratios


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench compare", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--system", default="trtdecode-triton")
    parser.add_argument("--reference", help="divide by this system's ratio, such as openvino-genai")
    parser.add_argument("--tolerance", type=float, default=DEFAULT_TOLERANCE)
    asked = parser.parse_args(arguments)
    base, new = (json.loads(path.read_text("utf-8")) for path in (asked.base, asked.new))
    try:
        ratios = compare(base, new, asked.system, asked.reference)
    except KeyError as error:
        print(f"system {error} is not in both runs", file=sys.stderr)
        return 2
    if not ratios:
        print(f"the runs share no concurrency of {asked.system}", file=sys.stderr)
        return 2
    slower = {n: ratio for n, ratio in ratios.items() if ratio < 1 - asked.tolerance}
    for n, ratio in ratios.items():
        print(f"{asked.system} at {n}: {ratio:.3f}{'  SLOWER' if n in slower else ''}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
