"""Runs checks within a time budget and collects what each found as plain data."""

from __future__ import annotations

import datetime
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NO_GPU_STATUS = 3
BUDGET_SECONDS = 440.0  # of the 8 minutes; the rest is start-up and the check that is running when it ends


class Skipped(Exception):
    """Raised by a check that cannot run here; the text says what is missing."""


@dataclass(frozen=True)
class Check:
    """One check: returns facts (JSON values), raises AssertionError with what is wrong, or Skipped."""

    name: str
    run: Callable[[], dict[str, Any]]


def run_checks(
    checks: Sequence[Check],
    *,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Runs all, one after another; one that fails or breaks does not stop the others.

    Returns:
        {"date", "seconds", "checks": [{"name", "status": passed | failed | skipped, "seconds", "facts" | "reason"}]}.
    """
    started = clock()
    results = []
    for check in checks:
        began = clock()
        if began - started > budget:
            result: dict[str, Any] = {"status": "skipped", "reason": f"the time budget of {budget:g} s is spent"}
        else:
            result = _run_one(check)
        result = {"name": check.name, "seconds": round(clock() - began, 2), **result}
        results.append(result)
        say(f"{result['name']}: {result['status']} in {result['seconds']} s{_tail(result)}")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "seconds": round(clock() - started, 2), "checks": results}


def _run_one(check: Check) -> dict[str, Any]:
    try:
        return {"status": "passed", "facts": check.run()}
    except Skipped as reason:
        return {"status": "skipped", "reason": str(reason)}
    except AssertionError as error:
        return {"status": "failed", "reason": str(error)}
    except Exception as error:  # a report that names the fault is worth more than a traceback alone
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _tail(result: dict[str, Any]) -> str:
    return f" ({result['reason'].splitlines()[0][:160]})" if result.get("reason") else ""
