"""Entry of scripts/gpu_check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from check_report import NO_GPU_STATUS, Check, run_checks
from trtdecode.executor.devices import find_devices


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description="Checks and measures the GPU side.")
    parser.add_argument("--json", type=Path, default=Path("out/gpu_check.json"), help="where the report goes")
    parser.add_argument("--version-dir", type=Path, help="a model version; its engines for this GPU are run as well")
    parser.add_argument("--only", default="", help="names of checks, comma-separated (default: all)")
    options = parser.parse_args(arguments)
    devices = find_devices()
    if not devices.gpu_sms:
        print(f"gpu_check: {devices.why_no_gpu}; run it on a machine with an NVIDIA GPU", file=sys.stderr)
        return NO_GPU_STATUS
    report = run_checks(select(all_checks(options.version_dir), options.only))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(f"report: {options.json}")
    return 1 if any(check["status"] == "failed" for check in report["checks"]) else 0


def all_checks(version_dir: Path | None) -> list[Check]:
    """In order of worth: what comes last is skipped first when time runs out."""
    # Imported here: without a GPU there may be no torch either.
    import attention_speed
    import cuda_machine
    import executor_checks
    import native_kernels
    import sampling_check
    import tensorrt_checks

    return [
        Check("machine", cuda_machine.describe),
        Check("tokens", executor_checks.tokens_on_cuda),
        Check("sampling", sampling_check.on_cuda),
        Check("kernels", native_kernels.run),
        Check("attention_bandwidth", attention_speed.on_cuda),
        Check("decode_step", executor_checks.decode_step_on_cuda),
        Check("tensorrt", lambda: tensorrt_checks.run(version_dir)),
        Check("cubins", native_kernels.run_cubins),
    ]


def select(checks: list[Check], only: str) -> list[Check]:
    """The checks named; all of them for an empty text. Raises SystemExit naming those there are."""
    wanted = [name for name in only.split(",") if name]
    known = [check.name for check in checks]
    for name in wanted:
        if name not in known:
            raise SystemExit(f"gpu_check: --only {name}: no such check; there are {', '.join(known)}")
    return [check for check in checks if not wanted or check.name in wanted]


if __name__ == "__main__":
    sys.exit(main())
