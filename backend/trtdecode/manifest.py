"""The manifest: the contract between what `build` writes and what `backend` reads.

A version folder holds `manifest.json` and only files the manifest lists (plus `reports/`). Loading verifies sizes
always and sha256 unless told otherwise, before anything is opened by a runtime.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from trtdecode.errors import ManifestError

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

#: What turns raw scores into what clients see.
SCORE_ACTIVATIONS = ("identity", "sigmoid", "softmax")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What serving must know of a model. Builders keep family details (RoPE, norms) to themselves."""

    family: str  # the builder's name of the architecture: "llama", "qwen2", ...
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_len: int  # positions the model was trained for
    sliding_windows: tuple[int, ...]  # one a layer; 0 means full attention
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    task: str = "generate"  # "generate", "embed", "rerank", "classify"
    labels: tuple[str, ...] = ()  # of classify: the scores' names, in order
    score_activation: str = ""  # of rerank and classify: one of SCORE_ACTIVATIONS
    num_token_types: int = 1  # of encoders: 2 where the texts of a pair are told apart

    @property
    def common_window(self) -> int:
        """Tokens that the widest layer sees if every layer slides, else 0: beyond it K/V can be freed."""
        return max(self.sliding_windows) if self.sliding_windows and all(self.sliding_windows) else 0

    def kv_bytes_per_token(self, bytes_per_value: float) -> float:
        """K and V bytes of one token over all layers."""
        return 2.0 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_value


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Digest of one file, by its path relative to the version folder."""

    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class EngineSet:
    """One precision's engines for one SM."""

    directory: str  # relative: engines/<sm>-<precision>
    precision: str
    sm: int  # 89 for compute capability 8.9
    flavour: str  # "tensorrt" or "tensorrt-rtx"
    builder_version: str
    timing_cache_key: str
    segments: tuple[str, ...]  # file names in execution order
    graph_sha256: str  # digest of the graph and its weights these were built from


@dataclass(frozen=True, slots=True)
class RankLayout:
    """How a model is split over ranks. Ranks of one pipeline stage are neighbours."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @property
    def num_ranks(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def rank_of(self, stage: int, tensor_rank: int) -> int:
        return stage * self.tensor_parallel_size + tensor_rank

    def __str__(self) -> str:
        return f"tensor_parallel_size {self.tensor_parallel_size}, pipeline_parallel_size {self.pipeline_parallel_size}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a version folder promises. With several ranks the graphs are theirs, each under its own manifest."""

    spec: ModelSpec
    source: str  # what was imported, for people
    graphs: dict[str, str]  # weight precision ("f32", "int8", ...) -> ONNX file name
    files: dict[str, FileEntry] = field(default_factory=dict)
    engines: tuple[EngineSet, ...] = ()
    builder: dict[str, str] = field(default_factory=dict)  # package name -> version that wrote the folder
    ranks: RankLayout = field(default_factory=RankLayout)
    format_version: int = FORMAT_VERSION

    def graph_file(self, precision: str) -> str:
        """The ONNX file of a weight precision. Raises ManifestError naming those present."""
        try:
            return self.graphs[precision]
        except KeyError:
            raise ManifestError(
                f"precision {precision!r} is not in this version (present: {', '.join(sorted(self.graphs))}); "
                f"import it again with `trtdecode import --precision {precision}`"
            ) from None


def rank_dir(version_dir: Path, rank: int) -> Path:
    """The folder of one rank of a version that is split: a version folder of its own."""
    return version_dir / f"rank_{rank}"


def rank_dirs(version_dir: Path, manifest: Manifest) -> tuple[Path, ...]:
    """The ranks' folders; none for a whole model."""
    num_ranks = manifest.ranks.num_ranks
    return tuple(rank_dir(version_dir, rank) for rank in range(num_ranks)) if num_ranks > 1 else ()


def sha256_of(path: Path) -> str:
    """Hex digest, read in 4 MiB pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_of(path: Path) -> FileEntry:
    """Digest and size of a file on disk."""
    return FileEntry(sha256_of(path), path.stat().st_size)


def write_manifest(version_dir: Path, manifest: Manifest) -> None:
    """Writes `manifest.json` atomically (temporary file, fsync, rename)."""
    target = version_dir / MANIFEST_FILE
    partial = target.with_suffix(".json.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(manifest), file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)


def read_manifest(version_dir: Path) -> Manifest:
    """Reads and checks the form of `manifest.json`; the files themselves are checked by `verify_files`.

    Raises:
        ManifestError: missing, not JSON, another format version, a field of the wrong form, or a name that points
            outside the folder.
    """
    path = version_dir / MANIFEST_FILE
    try:
        raw: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{path}: not found; create the version with `trtdecode import`") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ManifestError(f"{path}: not readable as JSON ({error}); import the model again") from error
    try:
        version = raw["format_version"]
        if version != FORMAT_VERSION:
            raise ManifestError(
                f"{path}: format_version {version}, this trtdecode reads {FORMAT_VERSION}; import the model again"
            )
        manifest = _manifest_from(raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"{path}: field missing or of the wrong form ({error}); import the model again") from error
    _check_names(path, manifest)
    return manifest


def _manifest_from(raw: dict[str, Any]) -> Manifest:
    spec = dict(raw["spec"])
    for name in ("sliding_windows", "eos_token_ids", "labels"):
        spec[name] = tuple(spec.get(name, ()))
    return Manifest(
        spec=ModelSpec(**spec),
        source=raw["source"],
        graphs=dict(raw["graphs"]),
        files={name: FileEntry(**entry) for name, entry in raw["files"].items()},
        engines=tuple(EngineSet(**{**entry, "segments": tuple(entry["segments"])}) for entry in raw["engines"]),
        builder=dict(raw["builder"]),
        ranks=RankLayout(**raw.get("ranks", {})),
    )


def _check_names(path: Path, manifest: Manifest) -> None:
    """A manifest comes with a model from elsewhere: it must not make us open anything outside its folder."""
    directories = [engines.directory for engines in manifest.engines]
    for name in (*manifest.files, *directories):
        pure = PurePosixPath(name)
        if not name or pure.is_absolute() or ".." in pure.parts:
            raise ManifestError(f"{path}: {name!r} is not a relative path inside the version folder; do not use it")
    for precision, name in manifest.graphs.items():
        if name not in manifest.files:
            raise ManifestError(
                f"{path}: graph {name!r} of precision {precision} is not among the files; import the model again"
            )


def verify_files(version_dir: Path, manifest: Manifest, *, names: set[str] | None = None, digests: bool = True) -> None:
    """Compares the folder with the manifest.

    Args:
        names: only these files (default all); a server checks just what it will open.
        digests: also compare sha256, not only sizes.

    Raises:
        ManifestError: naming the first file that is missing, of another size or of another digest, or not listed.
    """
    for name in sorted(manifest.files if names is None else names):
        entry = manifest.files.get(name)
        if entry is None:
            raise ManifestError(f"{version_dir}: file {name!r} is not in the manifest; import the model again")
        path = version_dir / name
        if not path.is_file():
            raise ManifestError(f"{path}: listed in the manifest but missing; import the model again")
        size = path.stat().st_size
        if size != entry.num_bytes:
            raise ManifestError(f"{path}: {size} bytes, manifest says {entry.num_bytes}; import the model again")
        if digests and sha256_of(path) != entry.sha256:
            raise ManifestError(f"{path}: sha256 differs from the manifest (file changed); import the model again")
