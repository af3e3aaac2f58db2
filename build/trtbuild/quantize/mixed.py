"""Mixed precision by layer: one small file of `pattern: precision` pairs.

    {encoder: fp16, attention_softmax: fp32, embedding: int8, "layers.0/*": fp16}

Braces and quotes are optional, entries end at a comma or a line, `#` starts a comment. A pattern is a group name or a
shell pattern over node names (`trtdecode layers` prints them). Later entries win, so put the exceptions last.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from trtdecode import support
from trtdecode.errors import ConfigError

#: What an entry may ask for: engine precisions, and float32 islands.
PRECISIONS = ("fp32", *support.ENGINE_PRECISIONS)
FLOATS = ("fp32", "fp16", "bf16")

#: Groups that need no node names. `embedding` is the table (and a tied head); the others are sets of operators.
GROUPS: dict[str, frozenset[str]] = {
    "encoder": frozenset({"MatMul", "Gemm"}),
    "attention_softmax": frozenset({"Softmax"}),
    "norm": frozenset({"LayerNormalization", "RMSNormalization"}),
    "activation": frozenset({"Gelu", "Swish", "Relu", "Tanh", "Sigmoid"}),
}
EMBEDDING = "embedding"

_ENTRY = re.compile(
    r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^:,{}"'\n]+?))\s*:\s*(?P<value>[^,\n]*)"""
)


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """The entries of a file, in order."""

    entries: tuple[tuple[str, str], ...] = ()

    def of_node(self, node: ir.Node) -> str | None:
        """The precision that the last matching entry asks for this node; None where no entry matches."""
        found = None
        for pattern, precision in self.entries:
            if pattern in GROUPS:
                matches = node.op_type in GROUPS[pattern]
            else:
                matches = pattern != EMBEDDING and fnmatch.fnmatchcase(node.name or "", pattern)
            if matches:
                found = precision
        return found

    @property
    def embedding(self) -> str | None:
        """What the last `embedding` entry asks for the table."""
        return dict(self.entries).get(EMBEDDING)

    def require_matches(self, nodes: Iterable[ir.Node]) -> None:
        """Raises ConfigError naming the patterns over names that match no node at all: most likely a slip."""
        names = [node.name or "" for node in nodes]
        patterns = (pattern for pattern, _ in self.entries if pattern not in GROUPS and pattern != EMBEDDING)
        unmatched = [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]
        if unmatched:
            raise ConfigError(
                f"mixed precision: no node is called {', '.join(map(repr, unmatched))}; "
                "`trtdecode layers` prints the names"
            )


def read_mixed(path: Path) -> MixedPrecision:
    """Reads a mixed-precision file.

    Raises:
        ConfigError: unreadable, an entry of another form, or a precision that does not exist or fit the group.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as mixed precision ({error})") from error
    return parse_mixed(text, str(path))


def parse_mixed(text: str, source: str) -> MixedPrecision:
    """Parses the file's text; `source` names it in errors. Raises ConfigError as `read_mixed` does."""
    body = re.sub(r"#[^\n]*", "", text).strip()
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1]
    entries = []
    for piece in re.split(r"[,\n]", body):
        if not piece.strip():
            continue
        match = _ENTRY.fullmatch(piece)
        if match is None:
            raise ConfigError(f"{source}: {piece.strip()!r} is not of the form `pattern: precision`")
        pattern = match["double"] or match["single"] or match["bare"]
        entries.append((pattern, _checked(source, pattern, match["value"].strip().strip("\"'"))))
    return MixedPrecision(tuple(entries))


def _checked(source: str, pattern: str, precision: str) -> str:
    allowed: tuple[str, ...] = PRECISIONS
    if pattern == EMBEDDING:
        allowed = ("fp16", "bf16", "int8")
    elif pattern in GROUPS and pattern != "encoder":
        allowed = FLOATS
    if precision not in allowed:
        raise ConfigError(f"{source}: {pattern}: {precision!r}; use one of {', '.join(allowed)}")
    return precision
