"""What /proc and /dev/shm say about a server and its stubs (Linux only, as Triton is)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trtdecode.server.locate import STUB_NAME

SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class StubProcess:
    """One stub of one server. `instance` is the model instance's name as Triton builds it ("smollm2_0_0")."""

    pid: int
    instance: str
    is_alive: bool  # False: exited and not yet waited for by the server


def list_stubs(server_pid: int) -> list[StubProcess]:
    """The stubs whose parent is this server, dead ones (zombies) included.

    A zombie has no command line any more; its `instance` is empty.
    """
    stubs = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, state, parent = _read_stat(entry)
            # The kernel cuts names to 15 characters.
            if parent != server_pid or name != STUB_NAME[:15]:
                continue
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue  # gone between listing and reading
        instance = arguments[8].decode(errors="replace") if len(arguments) > 8 else ""
        stubs.append(StubProcess(int(entry.name), instance, state != "Z"))
    return stubs


def is_running(pid: int) -> bool:
    """True while the process exists and is not a zombie."""
    try:
        return _read_stat(Path("/proc") / str(pid))[1] != "Z"
    except (OSError, ValueError):
        return False


def _read_stat(process: Path) -> tuple[str, str, int]:
    """Name, state and parent of a process. The name may hold spaces and parentheses, so it is cut at the last one."""
    text = (process / "stat").read_text(errors="replace")
    begin, end = text.index("("), text.rindex(")")
    state, parent = text[end + 2 :].split(" ", 2)[:2]
    return text[begin + 1 : end], state, int(parent)


def group_members(group: int) -> list[int]:
    """Pids of live processes in a process group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group and is_running(int(entry.name)):
                    members.append(int(entry.name))
            except OSError:
                continue
    return members


def shm_regions(prefix: str) -> list[Path]:
    """Shared-memory regions whose name begins with `prefix`."""
    return sorted(SHM.glob(f"{prefix}*")) if SHM.is_dir() else []


def remove_shm_regions(prefix: str) -> list[str]:
    """Unlinks leftover regions of processes that are gone; returns their names."""
    removed = []
    for region in shm_regions(prefix):
        try:
            region.unlink()
        except (FileNotFoundError, PermissionError):
            continue  # gone by now, or another user's: not ours to tidy up
        removed.append(region.name)
    return removed


def remove_orphaned_regions(prefix: str) -> list[str]:
    """Unlinks regions named PREFIX + PID + "_..." whose launcher is gone and that no process maps any more.

    They are what a launcher that was itself killed could not tidy up. Returns their names.
    """
    candidates = [region for region in shm_regions(prefix) if not is_running(_launcher_of(region.name, prefix))]
    if not candidates:
        return []
    maps = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                maps.append((process / "maps").read_text(errors="replace"))
            except OSError:
                continue  # gone, or somebody else's: then its regions cannot be ours to unlink either
    orphans = [region for region in candidates if not any(str(region) in text for text in maps)]
    return [name for region in orphans for name in remove_shm_regions(region.name)]


def _launcher_of(name: str, prefix: str) -> int:
    number = name.removeprefix(prefix).split("_", 1)[0]
    return int(number) if number.isdigit() else os.getpid()  # not of our making: leave it alone


def listener_of(port: int) -> int | None:
    """Process id of who listens on a local TCP port, as far as this user may see it."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text("ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:  # 0A is LISTEN
                inodes.add(f"socket:[{fields[9]}]")
    holders = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(descriptor) in inodes for descriptor in (process / "fd").iterdir()):
                holders.add(int(process.name))
        except OSError:  # ended, or another user's
            continue
    return min(holders, default=None)  # children may have inherited the socket; the parent came first
