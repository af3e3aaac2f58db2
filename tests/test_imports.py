"""The dependency rule of ARCHITECTURE.md, checked: what may import what, and that everything imports at all."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"trtdecode": ROOT / "backend" / "trtdecode", "trtbuild": ROOT / "build" / "trtbuild"}

#: Imports the standard library and numpy alone, so that it runs in a simulation, a stub or a notebook alike.
CORE = ("trtdecode.scheduler", "trtdecode.kv_cache", "trtdecode.sampling", "trtdecode.request", "trtdecode.loop")

#: What is not in `dependencies` of pyproject.toml (extras), and what exists only inside the Triton stub.
OPTIONAL = {
    *("torch", "transformers", "llguidance", "fastapi", "uvicorn", "httpx", "tensorrt", "tensorrt_rtx", "polygraphy"),
    *("onnxruntime", "triton", "cuda", "ray", "matplotlib", "triton_python_backend_utils"),
}

STUB_MODULE = {"triton_python_backend_utils"}  # exists only inside Triton's stub

#: Modules made of optional packages: kernels are triton-lang's decorators, the torch executor's operators are torch's
#: functions, the gateway's app is its routes. Each is imported inside a function of a module that does load.
ADAPTERS = {
    "trtdecode.kernels": {"triton", "torch"},
    "trtdecode.executor.graph_interpreter": {"torch"},
    "trtdecode.executor.torch_operators": {"torch"},
    "trtdecode.executor.torch_sampling": {"torch"},
    "trtdecode.gateway": {"fastapi"},
    **dict.fromkeys(("trtdecode.triton_entry", "trtdecode.triton_model", "trtdecode.triton_encoder"), STUB_MODULE),
}

#: What a builder may use of the run time: the contracts between the two, never the serving loop.
SHARED_WITH_BUILD = (
    "trtdecode.errors",
    "trtdecode.manifest",
    "trtdecode.support",
    "trtdecode.config",
    "trtdecode.executor",
    "trtdecode.text",
    "trtdecode.plan.devices",  # the device table, for the roofline of a layer report
)


@cache
def module_files() -> dict[str, Path]:
    """Every module of both packages, by dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_names(path: Path, *, at_load: bool) -> Iterator[str]:
    """Dotted names a file imports: those that run when it is loaded, or all but those for type checkers only."""

    def visit(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: write absolute imports"
                assert child.module is not None
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            elif not is_skipped(child):
                yield from visit(child)

    def is_skipped(node: ast.AST) -> bool:
        if isinstance(node, ast.If):
            return "TYPE_CHECKING" in ast.unparse(node.test)
        return at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)

    yield from visit(ast.parse(path.read_text("utf-8"), str(path)))


def our_module(name: str) -> str | None:
    """The module of ours behind an imported dotted name (`a.b.Class` is `a.b`), or None for anybody else's."""
    while name:
        if name in module_files():
            return name
        name = name.rpartition(".")[0]
    return None


def is_within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def import_all(modules: list[str], allowed: str) -> dict[str, str]:
    """Imports each module in a fresh interpreter where only what `allowed` (an expression of `top`) admits exists.

    Returns the error of each module that failed.
    """
    program = f"""
import importlib, json, sys
OURS = {{"trtdecode", "trtbuild"}}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if not ({allowed}):
            raise ModuleNotFoundError(f"blocked: {{top}}", name=top)
sys.path[:0] = {[str(folder.parent) for folder in SOURCES.values()]!r}
sys.meta_path.insert(0, Blocker())
failed = {{}}
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except Exception as error:
        failed[module] = f"{{type(error).__name__}}: {{error}}"
print(json.dumps(failed))
"""
    result = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    failures: dict[str, str] = json.loads(result.stdout.splitlines()[-1])
    return failures


def test_core_needs_the_standard_library_and_numpy_alone() -> None:
    core = [name for name in module_files() if is_within(name, CORE)]
    assert set(CORE) <= set(core), "a core module of ARCHITECTURE.md is gone"
    assert import_all(core, "top in OURS or top == 'numpy' or top in sys.stdlib_module_names") == {}


def test_core_reaches_no_adapter_of_ours() -> None:
    """The loop is handed its executor and its text machinery; it never imports one that needs a library."""
    for name, path in module_files().items():
        if is_within(name, CORE):
            for imported in imported_names(path, at_load=False):
                top = imported.partition(".")[0]
                assert top in {"trtdecode", "numpy"} | sys.stdlib_module_names, f"{name} imports {imported}"


def test_every_module_imports_without_optional_packages() -> None:
    modules = [name for name in module_files() if name not in {"trtdecode.model", "trtdecode.__main__"}]
    failed = import_all(modules, f"top not in {sorted(OPTIONAL)!r}")
    assert {name: error for name, error in failed.items() if not is_adapter_failure(name, error)} == {}


def is_adapter_failure(name: str, error: str) -> bool:
    """Whether a module that may need optional packages failed for want of one of them."""
    missing = error.rpartition("blocked: ")[2]
    return any(is_within(name, (prefix,)) and missing in packages for prefix, packages in ADAPTERS.items())


def test_no_import_cycles() -> None:
    graph = {
        name: {
            ours for imported in imported_names(path, at_load=True) if (ours := our_module(imported)) and ours != name
        }
        for name, path in module_files().items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


def test_serving_loads_no_builder() -> None:
    """trtdecode imports trtbuild only inside functions: the one that builds a missing engine, and commands."""
    for name, path in module_files().items():
        if name.startswith("trtdecode"):
            loads = [imported for imported in imported_names(path, at_load=True) if imported.startswith("trtbuild")]
            assert loads == [], f"{name} imports {loads} when loaded"


def test_builder_uses_only_the_contracts_of_the_run_time() -> None:
    for name, path in module_files().items():
        if name.startswith("trtbuild"):
            for imported in imported_names(path, at_load=False):
                ours = our_module(imported)
                if ours is not None and ours.startswith("trtdecode."):
                    assert is_within(ours, SHARED_WITH_BUILD), f"{name} imports {ours}"


def test_three_files_know_the_stub() -> None:
    users = [
        name
        for name, path in module_files().items()
        if any(imported.partition(".")[0] in STUB_MODULE for imported in imported_names(path, at_load=False))
    ]
    assert users == ["trtdecode.triton_encoder", "trtdecode.triton_entry", "trtdecode.triton_model"]


def test_the_shim_is_a_shim() -> None:
    lines = (SOURCES["trtdecode"] / "model.py").read_text("utf-8").splitlines()
    assert len(lines) <= 15
