"""A readable table of what compiled kernels take: one row a variant, one column an SM."""

from __future__ import annotations

from collections.abc import Iterable

from trtdecode.kernels.cubin_manifest import CubinEntry

_HEAD = """# What the kernels take of a multiprocessor

Compiled by {compiler} without a GPU, by `python -m trtdecode.kernels.aot --out DIR`: this file is DIR/resources.md.
A cell is registers a thread / dynamic shared bytes a block; stack and local bytes (spills) are named where there are
any, and then the build fails. A dash: the variant is not for that SM (FP8 needs SM 89).

"""


def resource_table(entries: Iterable[CubinEntry], compiler: str) -> str:
    """Markdown; rows in order of kernel and variant."""
    rows: dict[tuple[str, str, int], dict[int, CubinEntry]] = {}
    for entry in entries:
        rows.setdefault((entry.kernel, variant_text(entry), entry.num_warps), {})[entry.sm] = entry
    sms = sorted({sm for cells in rows.values() for sm in cells})
    lines = [
        f"| kernel | variant | warps | {' | '.join(f'SM {sm}' for sm in sms)} |",
        f"|---|---|---|{'---|' * len(sms)}",
    ]
    for (kernel, variant, warps), cells in sorted(rows.items()):
        shown = " | ".join(_cell(cells[sm]) if sm in cells else "-" for sm in sms)
        lines.append(f"| {kernel} | {variant} | {warps} | {shown} |")
    return _HEAD.format(compiler=compiler) + "\n".join(lines) + "\n"


def variant_text(entry: CubinEntry) -> str:
    """What tells a kernel's variants apart, in words: activations, shape, KV precision and form."""
    constants = entry.constexprs
    words = [entry.signature[0].removeprefix("*")]
    if "HEAD_DIM" in constants:
        words.append(f"head_dim {constants['HEAD_DIM']}")
    if "GROUP" in constants:
        words.append(f"group {constants['GROUP']}")
    if "BLOCK_SIZE" in constants:
        words.append(f"blocks of {constants['BLOCK_SIZE']}")
    if "QUANTISATION" in constants:
        words.append(f"{entry.signature[3 if entry.kernel == 'kv_write' else 1].removeprefix('*')} pages")
    if constants.get("DECODE"):
        words.append("split-K" if constants["SPLIT"] else "one pass")
    words += [name.lower() for name in ("SOFTCAP", "ALIBI") if constants.get(name)]
    if "BLOCK" in constants:
        words.append(f"rows of up to {constants['BLOCK']}")
    return ", ".join(words)


def _cell(entry: CubinEntry) -> str:
    spilled = entry.stack_bytes + entry.local_bytes
    text = f"{entry.registers} / {entry.shared_bytes}"
    return f"{text} ({entry.stack_bytes} stack, {entry.local_bytes} local)" if spilled else text
