"""Finds, runs and reads the real perf_analyzer.

One is taken from PATH; else from the `perf-analyzer` wheel where the C library is new enough (glibc 2.38); else the
binary inside the wheel `tritonclient==2.43.0`, with `nvidia-cuda-runtime-cu12` and Debian's `libb64-0d` beside it. They
are unpacked into a folder of their own, which needs no root: their dependencies are not ours.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtdecode.errors import ConfigError, LoadError
from trtdecode.loadtest.records import PERCENTILES
from trtdecode.loadtest.traffic import Shot

NEW_WHEEL = "perf-analyzer==2.60.0"
NEW_WHEEL_GLIBC = (2, 38)
OLD_WHEELS = ("tritonclient==2.43.0", "nvidia-cuda-runtime-cu12")
OLD_PACKAGE, OLD_LIBRARY = "libb64-0d", "libb64.so.0d"  # what the old binary links beside them


@dataclass(frozen=True, slots=True)
class PerfAnalyzer:
    """A binary that was seen to start."""

    path: Path
    library_dirs: tuple[Path, ...]
    version: str

    def run(self, arguments: Sequence[str], timeout: float) -> str:
        """Runs it and returns its output.

        Raises:
            LoadError: a non-zero exit or the timeout; holds the last lines of the output.
        """
        return _run(self.path, self.library_dirs, arguments, timeout)


def find_perf_analyzer(folder: Path) -> PerfAnalyzer:
    """The binary on PATH, or the one installed under `folder`, which is made when missing.

    Raises:
        LoadError: none could be installed or started; the text says which library or package is missing.
    """
    on_path = shutil.which("perf_analyzer")
    if on_path:
        return _checked(Path(on_path), ())
    libc = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    wheels: tuple[str, ...] = (NEW_WHEEL,) if libc >= NEW_WHEEL_GLIBC else OLD_WHEELS
    target = folder / "-".join(wheel.replace("==", "-") for wheel in wheels)
    if not target.is_dir():
        _install(wheels, target)
    if wheels is OLD_WHEELS:
        _add_library(target)
    binaries = [path for path in target.rglob("perf_analyzer") if path.is_file()]
    if not binaries:
        raise LoadError(f"{target}: no perf_analyzer in {' '.join(wheels)}; remove the folder to install it again")
    # The wheel of the new one has a Python launcher in bin/ beside the binary: the largest file is the program.
    binary = max(binaries, key=lambda path: path.stat().st_size)
    binary.chmod(0o755)
    libraries = [path for name in ("libcudart.so*", f"{OLD_LIBRARY}*") for path in target.rglob(name)]
    return _checked(binary, tuple(sorted({path.parent for path in libraries})))


def write_inputs(path: Path, shots: Sequence[Shot], *, ignore_eos: bool = True) -> None:
    """perf_analyzer's JSON input file: UTF-8 text, a string tensor is a list with one string."""
    data = []
    for shot in shots:
        sampling = json.dumps({"max_tokens": shot.max_tokens, "temperature": 0.0, "ignore_eos": ignore_eos})
        data.append({"text_input": [shot.prompt], "stream": [True], "sampling_parameters": [sampling]})
    path.write_text(json.dumps({"data": data}, ensure_ascii=False), "utf-8")


def check_string_file(path: Path) -> None:
    """Refuses a raw input file for a string tensor that lacks the 4-byte little-endian length before its text.

    Raises:
        ConfigError: with both sizes.
    """
    data = path.read_bytes()
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size != len(data) - 4:
        raise ConfigError(
            f"{path}: {len(data)} bytes do not begin with their length; a string tensor's raw file holds the text's "
            f"length as 4 little-endian bytes, then the text ({len(data)} + 4 = {len(data) + 4} bytes in all)"
        )


def measure(
    tool: PerfAnalyzer,
    *,
    url: str,
    model: str,
    inputs: Path,
    num_requests: int,
    concurrency: int = 0,
    rate: float = 0.0,
    work_dir: Path,
    timeout: float,
) -> dict[str, Any]:
    """One level: gRPC streaming at a concurrency or a request rate (one of the two).

    Returns:
        requests, responses, duration_s, requests_per_s, responses_per_s and ttft/itl/e2e percentiles in seconds;
        itl is between responses, since perf_analyzer cannot know tokens. From its printed summary, None where it has
        none: `printed_requests`, and `server_in_windows`, which it reads from the server's statistics.
    """
    export = work_dir / "profile.json"
    export.unlink(missing_ok=True)
    level = ["--concurrency-range", str(concurrency)] if concurrency else ["--request-rate-range", str(rate)]
    arguments = [
        *("-m", model, "-u", url, "-i", "grpc", "--streaming", "--async", "--input-data", str(inputs)),
        *("--profile-export-file", str(export), "--measurement-mode", "count_windows"),
        # One window is one measurement: stability is judged by the reader of the report, from the spread.
        *("--measurement-request-count", str(num_requests), "-s", "999", "--max-trials", "3", *level),
    ]
    output = tool.run(arguments, timeout)
    if not export.is_file():
        raise LoadError(
            f"perf_analyzer wrote no profile: {output.strip().splitlines()[-1] if output.strip() else 'no output'}"
        )
    figures = read_profile(json.loads(export.read_text("utf-8")))
    figures["printed_requests"] = _printed(output, "Request count")
    figures["server_in_windows"] = _printed(output, "Successful request count")
    return figures


def _printed(output: str, name: str) -> int | None:
    numbers = re.findall(rf"^\s*{name}: (\d+)", output, re.MULTILINE)
    return int(numbers[-1]) if numbers else None


def read_profile(profile: dict[str, Any]) -> dict[str, Any]:
    """Figures of the last experiment of a `--profile-export-file`. Timestamps in it are nanoseconds.

    Raises:
        LoadError: the profile holds no request.
    """
    experiments = profile.get("experiments") or [{}]
    requests = [r for r in experiments[-1].get("requests", []) if r.get("response_timestamps")]
    if not requests:
        raise LoadError("perf_analyzer's profile holds no request with a response; look at the server's log")
    starts = np.array([request["timestamp"] for request in requests], np.float64)
    times = [np.array(request["response_timestamps"], np.float64) for request in requests]
    duration = (max(t[-1] for t in times) - starts.min()) / 1e9
    ttft = np.array([t[0] for t in times]) - starts
    e2e = np.array([t[-1] for t in times]) - starts
    itl = np.concatenate([np.diff(t) for t in times])
    figures: dict[str, Any] = {
        "requests": len(requests),
        "responses": int(sum(len(t) for t in times)),
        "duration_s": duration,
        "requests_per_s": len(requests) / duration,
        "responses_per_s": sum(len(t) for t in times) / duration,
    }
    for name, values in (("ttft", ttft), ("itl", itl), ("e2e", e2e)):
        for percentile in PERCENTILES:
            figures[f"{name}_p{percentile}"] = float(np.percentile(values, percentile)) / 1e9 if len(values) else None
    return figures


def _install(wheels: Sequence[str], target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial), *wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise LoadError(
            f"perf_analyzer: pip could not install {' '.join(wheels)}: {lines[-1] if lines else 'no output'}"
        )
    partial.replace(target)


def _add_library(target: Path) -> None:
    """Unpacks Debian's package where the system lacks the library; what fails here is said when the binary starts."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(OLD_LIBRARY)
        return
    if any(target.rglob(OLD_LIBRARY)):
        return
    folder = target / "debian"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):  # another system has neither command
        subprocess.run(["apt-get", "download", "-q", OLD_PACKAGE], cwd=folder, capture_output=True, check=True)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], capture_output=True, check=True)


def _checked(path: Path, library_dirs: tuple[Path, ...]) -> PerfAnalyzer:
    output = _run(path, library_dirs, ["--version"], 30)
    match = re.search(r"\d+\.\d+\.\d+", output)
    return PerfAnalyzer(path, library_dirs, match[0] if match else output.strip())


def _run(path: Path, library_dirs: tuple[Path, ...], arguments: Sequence[str], timeout: float) -> str:
    extra = [str(folder) for folder in library_dirs]
    env = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join([*extra, os.environ.get("LD_LIBRARY_PATH", "")])}
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=timeout, env=env, check=False)
    except subprocess.TimeoutExpired:
        raise LoadError(f"perf_analyzer did not end within {timeout:g} s; lower the number of requests") from None
    if done.returncode:
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        hint = "; install Debian's libb64-0d" if "libb64" in tail else ""
        raise LoadError(f"perf_analyzer ended with {done.returncode}: {tail}{hint}")
    return done.stdout + done.stderr  # the version goes to the one or the other
