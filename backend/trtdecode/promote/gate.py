"""What a gate is: a name, a question, and an answer with evidence."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.errors import TrtdecodeError
from trtdecode.manifest import Manifest, read_manifest
from trtdecode.promote.limits import Limits
from trtdecode.server.launch import TritonServer

CANDIDATE = "candidate"
CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One gate's answer."""

    gate: str
    passed: bool
    evidence: str  # one sentence with the figures that decided
    figures: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(slots=True)
class Context:
    """What gates look at. The scratch server starts at the first gate that needs it, and serves them all."""

    version_dir: Path
    target: Path  # the repository
    model: str
    limits: Limits
    golden: Path  # JSONL, see gates/golden.py
    mode: str = "overlap"
    current_dir: Path | None = None  # the version in service, if any
    server_options: dict[str, Any] = field(default_factory=dict)
    _server: TritonServer | None = None
    _work: Path | None = None

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.version_dir)

    @property
    def config_pbtxt(self) -> str:
        """The target's configuration of the model, which the new version will be served with."""
        for folder in (self.target / self.model, self.version_dir.parent):
            if (folder / "config.pbtxt").is_file():
                return (folder / "config.pbtxt").read_text("utf-8")
        return 'backend: "trtdecode"\n'

    def server(self) -> TritonServer:
        """A tritonserver of our own with the candidate, and with the version in service beside it."""
        if self._server is None:
            self._work = Path(tempfile.mkdtemp(prefix="trtdecode-gates-"))
            repository = self._work / "repository"
            versions = {CANDIDATE: self.version_dir, CURRENT: self.current_dir}
            for name, version_dir in versions.items():
                if version_dir is not None:
                    (repository / name).mkdir(parents=True)
                    (repository / name / "1").symlink_to(version_dir.resolve(), target_is_directory=True)
                    (repository / name / "config.pbtxt").write_text(renamed(self.config_pbtxt, name), "utf-8")
            server = TritonServer(repository, log_path=self._work / "server.log", **self.server_options)
            server.start()
            self._server = server
        return self._server

    def close(self) -> None:
        """Ends the scratch server and removes its folder."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            self._work = None


Question = Callable[[Context], tuple[bool, str, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Gate:
    """A question with a name. `ask` returns (passed, evidence, figures); an error of ours is a refusal, not a crash."""

    name: str
    ask: Question

    def run(self, context: Context) -> Verdict:
        start = time.monotonic()
        try:
            passed, evidence, figures = self.ask(context)
        except (TrtdecodeError, OSError) as error:
            passed, evidence, figures = False, str(error), {}
        return Verdict(self.name, passed, evidence, figures, round(time.monotonic() - start, 3))


def renamed(config: str, name: str) -> str:
    """The configuration without its `name:` line, under another one."""
    lines = [line for line in config.splitlines() if not line.lstrip().startswith("name:")]
    return f'name: "{name}"\n' + "\n".join(lines) + "\n"


@contextlib.contextmanager
def closing(context: Context) -> Iterator[Context]:
    """Closes a context whatever happens."""
    try:
        yield context
    finally:
        context.close()


def available_memory() -> int:
    """Bytes that can be taken without swapping."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
