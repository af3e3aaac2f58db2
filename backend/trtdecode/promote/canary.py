"""The last question before the cut-over, asked of the serving tritonserver: the new version as `NAME--candidate`.

Another name, because Triton sends a request without a version to the highest loaded one: under its own name it would
serve at once. The same requests go to both, one after the other; users are not touched. A gateway's split may send
real users to the candidate meanwhile, by its name.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.errors import ServerError
from trtdecode.loadtest.traffic import Traffic, generate
from trtdecode.promote.gate import Verdict, renamed
from trtdecode.promote.gates.golden import read_golden
from trtdecode.promote.limits import Limits
from trtdecode.promote.publish import PromotionError
from trtdecode.server.client import ServerClient

NAME = "canary"
SUFFIX = "--candidate"
OUTPUT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Canary:
    """What is compared: a published, not yet loaded version with the model of that name in service."""

    client: ServerClient
    repository: Path
    model: str
    number: int
    golden: Path
    limits: Limits
    num_requests: int
    timeout_s: float

    @property
    def candidate(self) -> str:
        return f"{self.model}{SUFFIX}"

    @property
    def folder(self) -> Path:
        return self.repository / self.candidate

    def run(self) -> Verdict:
        """Loads the candidate, mirrors the requests, unloads it and removes its folder, whatever came of it."""
        start = time.monotonic()
        try:
            self._place()
            self.client.load(self.candidate, self.timeout_s)
            passed, evidence, figures = self._compare()
        except (ServerError, OSError, http.client.HTTPException) as error:
            passed, evidence, figures = False, str(error), {}
        finally:
            self._remove()
        return Verdict(NAME, passed, evidence, figures, round(time.monotonic() - start, 3))

    def _place(self) -> None:
        """A folder whose only version links to the published one: nothing is copied."""
        shutil.rmtree(self.folder, ignore_errors=True)  # of a promotion that was killed
        self.folder.mkdir()
        (self.folder / str(self.number)).symlink_to(Path("..") / self.model / str(self.number))
        config = (self.repository / self.model / "config.pbtxt").read_text("utf-8")
        (self.folder / "config.pbtxt").write_text(renamed(config, self.candidate), "utf-8")

    def _remove(self) -> None:
        try:
            self.client.unload(self.candidate)
            deadline = time.monotonic() + self.timeout_s
            while self.candidate in self.client.ready_models() and time.monotonic() < deadline:
                time.sleep(0.1)
        except (ServerError, OSError, http.client.HTTPException):
            pass  # not loaded, or the server is away: the cut-over will say so
        shutil.rmtree(self.folder, ignore_errors=True)

    def _compare(self) -> tuple[bool, str, dict[str, Any]]:
        mirrored = [self._ask(body) for body in self._bodies()]
        failures = [text for _, mine in mirrored for text in [mine.failure] if text]
        equal = sum(old.text == mine.text for old, mine in mirrored)
        ratio = statistics.median(mine.seconds for _, mine in mirrored) / statistics.median(
            old.seconds for old, _ in mirrored
        )
        limit = 1 / self.limits.load.min_tokens_per_s_ratio
        problems = (
            [f"{len(failures)} of {len(mirrored)} requests failed on the candidate: {failures[0]}"] if failures else []
        )
        if ratio > limit:
            problems.append(f"its answers take {ratio:.2f} times as long as those in service, limit {limit:.2f}")
        evidence = f"{len(mirrored)} mirrored requests, {equal} with equal texts, {ratio:.2f} times the time in service"
        figures = {"requests": len(mirrored), "equal": equal, "time_ratio": round(ratio, 3), "failures": len(failures)}
        return not problems, "; ".join([*problems, evidence]), figures

    def _bodies(self) -> list[dict[str, Any]]:
        """The golden prompts first, then generated ones."""
        golden = read_golden(self.golden) if self.golden.is_file() else []
        prompts = [(entry["prompt"], entry["max_tokens"]) for entry in golden]
        more = max(1, self.num_requests - len(prompts))
        shots = generate(Traffic(num_requests=more, prompt_words=32, output_tokens=OUTPUT_TOKENS))
        prompts += [(shot.prompt, shot.max_tokens) for shot in shots]
        common = {"temperature": 0.0, "exclude_input_in_output": True}
        return [{"text_input": text, "max_tokens": length, **common} for text, length in prompts[: self.num_requests]]

    def _ask(self, body: dict[str, Any]) -> tuple[_Answer, _Answer]:
        """The answers in service and of the candidate."""
        return self._one(self.model, body), self._one(self.candidate, body)

    def _one(self, model: str, body: dict[str, Any]) -> _Answer:
        start = time.monotonic()
        answer = self.client.generate(model, body, self.timeout_s)
        seconds = time.monotonic() - start
        if answer.status != 200:
            return _Answer("", seconds, f"{answer.status}: {answer.body.decode(errors='replace')[:120]}")
        return _Answer(str(json.loads(answer.body)["text_output"]), seconds)


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    seconds: float
    failure: str = field(default="")


def check(num_requests: int, client: ServerClient | None, mode: str) -> None:
    """Raises PromotionError for a canary that cannot be."""
    if num_requests < 0:
        raise PromotionError(f"--canary {num_requests}: must be a number of requests, 0 for none")
    if num_requests and client is None:
        raise PromotionError("--canary needs a running server: name it with --server")
    if num_requests and mode != "overlap":
        raise PromotionError("--canary loads the new version beside the old one: it needs mode overlap")
