"""Compiles the kernels ahead of time, without a GPU: `python -m trtdecode.kernels.aot --out DIR --sm 80,90`.

Writes one cubin a (variant, SM), `cubins.json` for the launcher and `resources.md` with registers, stack and local
bytes. A kernel that spills is an error. Compiled code is kept by content in triton-lang's own cache
(TRITON_CACHE_DIR), so that a second run only copies.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trtdecode.errors import LoadError, UnsupportedError
from trtdecode.kernels import language
from trtdecode.kernels.catalogue import ACTIVATIONS, SHAPES, ModelShape, variants_of
from trtdecode.kernels.cubin_manifest import CubinEntry, write_cubin_manifest
from trtdecode.kernels.launch import Kernel, Variant
from trtdecode.kernels.pages import PAGE_DTYPES
from trtdecode.kernels.resource_table import resource_table
from trtdecode.kernels.resources import measure
from trtdecode.manifest import read_manifest
from trtdecode.support import KV_CACHE_PRECISIONS

SMS = (80, 86, 89, 90, 100, 120)
_PARAMETER = re.compile(r"^\s*\.param ", flags=re.MULTILINE)


def compile_variant(kernel: Kernel, variant: Variant, sm: int, directory: Path) -> CubinEntry:
    """Compiles one variant for one SM into `directory` and measures it.

    Raises:
        LoadError: the kernel wants scratch memory, which the launcher does not give.
    """
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile  # noqa: A004 (triton-lang's name)

    source = ASTSource(kernel.function, *_signature(kernel, variant))
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": True}
    compiled = compile(source, target=GPUTarget("cuda", sm, 32), options=options)
    code: bytes = compiled.asm["cubin"]
    digest = hashlib.sha256(code).hexdigest()
    # Named by content and SM; two variants may share a file.
    path = directory / f"sm{sm}" / f"{kernel.name}-{digest[:16]}.cubin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(code)
    if compiled.metadata.global_scratch_size or compiled.metadata.profile_scratch_size:
        raise LoadError(f"{variant.key} for SM {sm} wants scratch memory; the cubin launcher passes none")
    resources = measure(path, knobs.nvidia.cuobjdump.path)
    return CubinEntry(
        key=variant.key,
        kernel=kernel.name,
        sm=sm,
        file=str(path.relative_to(directory)),
        sha256=digest,
        entry_point=compiled.metadata.name,
        signature=variant.types,
        constexprs=dict(variant.constexprs),
        num_warps=variant.num_warps,
        num_stages=variant.num_stages,
        shared_bytes=compiled.metadata.shared,
        hidden_pointers=len(_PARAMETER.findall(compiled.asm["ptx"])) - len(variant.types),
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        local_bytes=resources.local_bytes,
    )


def _signature(kernel: Kernel, variant: Variant) -> tuple[dict[str, str], dict[str, Any], dict[Any, Any]]:
    """(signature, constexprs, attributes) in triton-lang's words."""
    constexprs = dict(variant.constexprs)
    types = iter(variant.types)
    signature: dict[str, str] = {}
    attributes: dict[Any, Any] = {}
    for index, name in enumerate(kernel.function.arg_names):
        if name in constexprs:
            signature[name] = "constexpr"
            continue
        kind = next(types)
        signature[name] = kind.removesuffix(":16")
        if kind.startswith("*") or kind.endswith(":16"):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constexprs, attributes


def compile_all(
    variants: Iterable[tuple[Kernel, Variant]], sms: Sequence[int], directory: Path, jobs: int
) -> list[CubinEntry]:
    """Compiles every variant for every SM that can run it, `jobs` at a time, and writes `cubins.json`.

    Raises:
        UnsupportedError: triton-lang is missing or interprets.
    """
    language.require("compile kernels ahead of time")
    work = [
        (kernel, v, sm)
        for kernel, v in variants
        for sm in sms
        if sm >= KV_CACHE_PRECISIONS["fp8"].min_sm or not v.uses_fp8
    ]
    if any(language.interpreted(kernel.function) for kernel, _, _ in work):
        raise UnsupportedError("TRITON_INTERPRET is set: kernels are interpreted, not compiled; unset it")
    directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        entries = list(pool.map(lambda item: compile_variant(item[0], item[1], item[2], directory), work))
    write_cubin_manifest(directory, entries, compiler())
    return entries


def compiler() -> str:
    """Who compiles, for the manifest."""
    return f"triton-lang {language.version()}"


def _shapes(arguments: argparse.Namespace) -> list[ModelShape]:
    options = {"block_size": arguments.block_size, "softcap": arguments.softcap}
    if arguments.model:
        return [ModelShape.of_spec(read_manifest(folder).spec, **options) for folder in arguments.model]
    return [SHAPES[name] for name in arguments.shape]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trtdecode.kernels.aot", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the cubins and their manifest")
    parser.add_argument("--sm", type=_numbers, default=SMS, help="compute capabilities, as in 80,90 (default: all)")
    parser.add_argument("--model", type=Path, action="append", help="a model's version folder, for its exact shapes")
    parser.add_argument("--shape", action="append", choices=list(SHAPES), help="a built-in shape (default: all)")
    parser.add_argument("--dtype", action="append", choices=list(ACTIVATIONS), help="of activations (default: f16)")
    parser.add_argument("--kv", action="append", choices=list(PAGE_DTYPES), help="KV precision (default: f16 int8 fp8)")
    parser.add_argument("--block-size", type=int, default=16, help="KV slots a block (with --model)")
    parser.add_argument("--softcap", type=float, default=0.0, help="of attention scores (with --model)")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time")
    parsed = parser.parse_args(arguments)
    parsed.shape = parsed.shape or list(SHAPES)
    parsed.dtype = parsed.dtype or ["f16"]
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 when a kernel spills or cannot be compiled (one line on stderr)."""
    options = parse_arguments(arguments)
    try:
        variants: dict[str, tuple[Kernel, Variant]] = {}
        for shape in _shapes(options):
            for dtype in options.dtype:
                found = variants_of(shape, dtype, options.kv or (dtype, "int8", "fp8"))
                variants.update({variant.key: (kernel, variant) for kernel, variant in found})
        entries = compile_all(variants.values(), options.sm, options.out, options.jobs)
    except LoadError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (options.out / "resources.md").write_text(resource_table(entries, compiler()), "utf-8")
    print(f"{len(entries)} cubins of {len(variants)} kernels for SM {', '.join(map(str, options.sm))} in {options.out}")
    spilling = [entry for entry in entries if entry.stack_bytes or entry.local_bytes]
    for entry in spilling:
        print(
            f"error: SM {entry.sm} spills {entry.stack_bytes} stack and {entry.local_bytes} local bytes a thread: "
            f"{entry.key}; give it more warps or a smaller tile",
            file=sys.stderr,
        )
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
