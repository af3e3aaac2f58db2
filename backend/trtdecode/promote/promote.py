"""The order of a promotion. Any failure leaves the old version serving, and says what failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.errors import ManifestError, TrtdecodeError
from trtdecode.manifest import read_manifest
from trtdecode.promote import canary
from trtdecode.promote.canary import Canary
from trtdecode.promote.cutover import CutOver, cut_over, states
from trtdecode.promote.gate import Context, Verdict, closing
from trtdecode.promote.gates import ENCODER_GATES, GATES, gates_for
from trtdecode.promote.limits import Limits
from trtdecode.promote.publish import PromotionError, equal_version, model_lock, publish, versions, withdraw
from trtdecode.promote.record import write_record
from trtdecode.server.client import ServerClient

MODES = ("overlap", "replace")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be promoted, and where to."""

    source: Path  # a version folder
    target: Path  # the repository
    model: str
    limits: Limits
    who: str
    golden: Path
    client: ServerClient | None = None  # of the running server; None: only publish
    mode: str = "overlap"
    number: int | None = None  # default: one above the highest
    timeout_s: float = 300.0
    skip: frozenset[str] = frozenset()  # gates not asked; the record names them
    canary: int = 0  # requests mirrored in the running server to the new version as NAME--candidate
    server_options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Outcome:
    """What became of it."""

    promoted: bool
    number: int | None
    verdicts: list[Verdict]
    message: str
    cut_over: CutOver | None = None


def promote(
    request: Request, on_verdict: Callable[[Verdict], None] = lambda v: None, say: Callable[[str], None] = print
) -> Outcome:
    """Asks the gates, publishes, cuts over and records.

    Raises:
        PromotionError: wrong arguments, or the repository or server failed; the old version serves on.
    """
    _check(request)
    model_dir = request.target / request.model
    with model_lock(request.target, request.model):
        same = equal_version(model_dir, request.source)
        if same is not None and _serves(request, same):
            return Outcome(True, same, [], f"version {same} already holds and serves these artefacts")
        current = _in_service(request, model_dir)
        verdicts = _ask_gates(request, model_dir, current, on_verdict)
        refused = [verdict for verdict in verdicts if not verdict.passed]
        if refused:
            names = ", ".join(verdict.gate for verdict in refused)
            return Outcome(False, None, verdicts, f"refused by {names}; version {current} serves on")
        number = same or request.number or (versions(model_dir) or [0])[-1] + 1
        if current is not None and number < current:
            raise PromotionError(
                f"version {number} is below {current}, which is in service: Triton would never choose it"
            )
        if same is None:
            _publish(request, model_dir, number)
        if request.canary and current is not None:
            verdicts.append(_canary(request, number).run())
            on_verdict(verdicts[-1])
            if not verdicts[-1].passed:
                withdraw(model_dir, number)
                return Outcome(False, None, verdicts, f"refused by canary; version {current} serves on")
        result = _cut_over(request, model_dir, number, current, say) if request.client else None
        message = f"version {number} is in service"
        try:
            write_record(
                model_dir / str(number),
                who=request.who,
                source=request.source,
                model=request.model,
                number=number,
                verdicts=verdicts,
                cut_over=dataclasses.asdict(result) if result else {},
            )
        except OSError as error:  # too late to go back, and no reason to
            message += f"; its record could not be written ({error.strerror})"
        return Outcome(True, number, verdicts, message, result)


def rollback(
    target: Path, model: str, client: ServerClient | None, timeout_s: float, say: Callable[[str], None] = print
) -> int:
    """Withdraws the highest version and loads the one before; returns its number.

    Raises:
        PromotionError: there is no earlier version, or the server failed.
    """
    model_dir = target / model
    with model_lock(target, model):
        found = versions(model_dir)
        if len(found) < 2:
            raise PromotionError(f"{model_dir}: versions are {found}; there is none to return to")
        withdraw(model_dir, found[-1])
        if client is not None:
            cut_over(client, model, found[-2], old=found[-1], mode="overlap", timeout_s=timeout_s, say=say)
        return found[-2]


def _check(request: Request) -> None:
    if request.mode not in MODES:
        raise PromotionError(f"mode {request.mode!r} is not known; use one of {', '.join(MODES)}")
    if not request.target.is_dir():
        raise PromotionError(f"{request.target}: no such repository; make the folder, or name another one with --to")
    canary.check(request.canary, request.client, request.mode)
    if request.canary and _task(request.source) != "generate":
        raise PromotionError("--canary compares generated texts; of an encoder the gate encoding compares outputs")
    known = {gate.name for gate in (*GATES, *ENCODER_GATES)}
    if request.skip - known:
        raise PromotionError(
            f"gate {sorted(request.skip - known)[0]!r} is not known; there are {', '.join(sorted(known))}"
        )
    if request.number is not None and request.number < 1:
        raise PromotionError(f"version {request.number} is not a version number; it must be 1 or more")


def _ask_gates(
    request: Request, model_dir: Path, current: int | None, on_verdict: Callable[[Verdict], None]
) -> list[Verdict]:
    """All gates until the first refusal of one that later ones build upon: a damaged folder is not served."""
    context = Context(
        version_dir=request.source,
        target=request.target,
        model=request.model,
        limits=request.limits,
        golden=request.golden,
        mode=request.mode,
        current_dir=None if current is None else model_dir / str(current),
        server_options=request.server_options,
    )
    verdicts = []
    with closing(context):
        for gate in gates_for(_task(request.source)):
            if gate.name in request.skip:
                verdict = Verdict(gate.name, True, "skipped on request", {"skipped": True})
            else:
                verdict = gate.run(context)
            verdicts.append(verdict)
            on_verdict(verdict)
            if not verdict.passed:
                break
    return verdicts


def _task(version_dir: Path) -> str:
    """Without a readable manifest a decoder's: its first gate says what is wrong."""
    try:
        return read_manifest(version_dir).spec.task
    except ManifestError:
        return "generate"


def _cut_over(
    request: Request, model_dir: Path, number: int, current: int | None, say: Callable[[str], None]
) -> CutOver:
    assert request.client is not None, "only called with a server"
    try:
        return cut_over(
            request.client, request.model, number, old=current, mode=request.mode, timeout_s=request.timeout_s, say=say
        )
    except PromotionError as failure:
        withdraw(model_dir, number)
        if current is None:
            raise
        say(f"{failure}; returning to version {current}")
        try:
            cut_over(
                request.client, request.model, current, old=None, mode="overlap", timeout_s=request.timeout_s, say=say
            )
        except TrtdecodeError as second:
            raise PromotionError(f"{failure}; and version {current} could not be loaded again: {second}") from failure
        raise PromotionError(f"{failure}; version {current} serves on") from failure


def _in_service(request: Request, model_dir: Path) -> int | None:
    """The version that answers now: the highest READY one, or without a server the highest in the folder."""
    if request.client is None:
        found = versions(model_dir)
    else:
        found = sorted(number for number, state in states(request.client, request.model).items() if state == "READY")
    return found[-1] if found else None


def _publish(request: Request, model_dir: Path, number: int) -> None:
    try:
        model_dir.mkdir(exist_ok=True)
        publish(request.source, model_dir, number)
        _copy_config(request.source, model_dir)
    except OSError as error:
        raise PromotionError(
            f"{model_dir}: could not be written ({error.strerror}); the version in service is untouched"
        ) from error


def _canary(request: Request, number: int) -> Canary:
    assert request.client is not None, "checked before"
    return Canary(
        client=request.client,
        repository=request.target,
        model=request.model,
        number=number,
        golden=request.golden,
        limits=request.limits,
        num_requests=request.canary,
        timeout_s=request.timeout_s,
    )


def _serves(request: Request, number: int) -> bool:
    return request.client is None or states(request.client, request.model).get(number) == "READY"


def _copy_config(source: Path, model_dir: Path) -> None:
    """A model that is new to the repository takes its configuration from beside the source version."""
    target, origin = model_dir / "config.pbtxt", source.parent / "config.pbtxt"
    if not target.exists():
        target.write_text(origin.read_text("utf-8") if origin.is_file() else 'backend: "trtdecode"\n', "utf-8")
