"""What several commands ask of a model repository: which models, which version."""

from __future__ import annotations

from pathlib import Path

from trtdecode.errors import ConfigError

DEFAULT_REPOSITORY = Path("model_repository")
DEFAULT_GRPC_ADDRESS = "localhost:8001"


def model_names(repository: Path) -> list[str]:
    """Models with at least one version, sorted."""
    if not repository.is_dir():
        return []
    return sorted(folder.name for folder in repository.iterdir() if folder.is_dir() and versions_of(folder))


def versions_of(model_dir: Path) -> list[int]:
    """Numbers of the version folders, ascending; what else lies there is not a version to Triton either."""
    if not model_dir.is_dir():
        return []
    return sorted(int(entry.name) for entry in model_dir.iterdir() if entry.name.isdecimal() and entry.is_dir())


def choose_model(repository: Path, name: str | None) -> str:
    """The model to use: `name`, or the only one there.

    Raises:
        ConfigError: not there, or more than one to choose from.
    """
    names = model_names(repository)
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        assert name is not None
        return name
    present = ", ".join(names) or "none"
    problem = f"--model {name}: not in" if name else "--model is needed: not exactly one model in"
    raise ConfigError(f"{problem} {repository} (present: {present}); import one with `trtdecode import`")


def newest_version_dir(repository: Path, name: str) -> Path:
    """The folder of the version that Triton serves by default."""
    return repository / name / str(versions_of(repository / name)[-1])
