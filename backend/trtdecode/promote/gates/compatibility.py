"""Can the target serve this version at all: its task, and the precision of its engines on their GPU?"""

from __future__ import annotations

from typing import Any

from trtdecode.manifest import rank_dirs, read_manifest
from trtdecode.promote.gate import Context, Gate
from trtdecode.support import check_engine


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Checks the manifest against the support table and against the version in service."""
    manifest = context.manifest
    parts = [read_manifest(folder) for folder in rank_dirs(context.version_dir, manifest)] or [manifest]
    if not all(part.graphs for part in parts):
        return False, "the manifest lists no graph; import the model again", {}
    for engines in parts[0].engines:
        check_engine(engines.precision, engines.sm, engines.flavour)
    if context.current_dir is not None:
        old = read_manifest(context.current_dir).spec
        if old.task != manifest.spec.task:
            return False, f"task is {manifest.spec.task!r}, that of the version in service {old.task!r}", {}
        if manifest.spec.max_context_len < old.max_context_len:
            contexts = f"{manifest.spec.max_context_len} tokens, the version in service takes {old.max_context_len}"
            return False, f"the context shrinks to {contexts}: clients would be refused", {}
    kinds = [f"{engines.flavour} sm{engines.sm} {engines.precision}" for engines in parts[0].engines]
    return True, f"graphs: {', '.join(sorted(parts[0].graphs))}; engines: {', '.join(kinds) or 'none'}", {}


GATE = Gate("compatibility", ask)
