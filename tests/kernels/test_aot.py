"""Real ahead-of-time compilation, in a process of its own since this one interprets. No GPU is needed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trtdecode.errors import LoadError
from trtdecode.kernels.aot import SMS, main
from trtdecode.kernels.catalogue import SHAPES, ModelShape, variants_of
from trtdecode.kernels.cubin import CubinLauncher
from trtdecode.kernels.cubin_manifest import CubinEntry, read_cubin_manifest
from trtdecode.kernels.resource_table import resource_table
from trtdecode.kernels.resources import Resources, parse_res_usage
from trtdecode.manifest import sha256_of


def run_aot(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "trtdecode.kernels.aot", "--out", str(out), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `cmake --install` makes: the backend folder in Triton's layout, with SmolLM2's cubins for every SM."""
    root = tmp_path_factory.mktemp("cmake")
    repository = Path(__file__).resolve().parents[2]
    options = (
        "-DTRTDECODE_CUBIN_SHAPES=smollm2-135m",
        f"-DPython_EXECUTABLE={sys.executable}",
    )
    for command in (
        ("cmake", "-S", repository / "native" / "cubins", "-B", root / "build", *options),
        ("cmake", "--build", root / "build", "--target", "cubins"),
        ("cmake", "--install", root / "build", "--component", "backend", "--prefix", root / "triton"),
    ):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    return root / "triton" / "backends" / "trtdecode"


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute on two idle cores
def test_cmake_installs_the_backend_with_its_cubins(installed: Path) -> None:
    assert (installed / "model.py").is_file() and (installed / "kernels" / "cubin.py").is_file()
    assert not list(installed.rglob("__pycache__"))
    assert CubinLauncher(installed / "cubins", 90, lambda: 0, driver=object())
    # The path that a server's process computes for itself.
    # An editable install of this checkout finds its own files before any path is looked at.
    script = (
        "import sys; sys.meta_path = [f for f in sys.meta_path if 'Redirecting' not in type(f).__name__]; "
        "from trtdecode.kernels.cubin import DEFAULT_DIRECTORY; print(DEFAULT_DIRECTORY)"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed.parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == installed / "cubins"


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute on two idle cores
def test_every_kernel_compiles_for_every_sm_without_spills(installed: Path) -> None:
    check_cubins(installed / "cubins", SHAPES["smollm2-135m"], SMS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute on two idle cores
def test_wide_heads_compile_without_spills(tmp_path: Path) -> None:
    """head_dim 128 is where registers run short; SM 86 and 89 generate SM 80's code, SM 100 is the roomiest."""
    done = run_aot(tmp_path, "--shape", "llama-3.1-8b", "--sm", "80,90,120")
    assert done.returncode == 0, done.stdout + done.stderr
    check_cubins(tmp_path, SHAPES["llama-3.1-8b"], (80, 90, 120))


def check_cubins(directory: Path, shape: ModelShape, sms: tuple[int, ...]) -> None:
    entries = read_cubin_manifest(directory)
    assert [entry.key for entry in entries if entry.stack_bytes or entry.local_bytes] == []
    for sm in sms:
        kv_precisions = ["f16", "int8", "fp8"] if sm >= 89 else ["f16", "int8"]
        wanted = {variant.key for _, variant in variants_of(shape, "f16", kv_precisions)}
        assert {entry.key for entry in entries if entry.sm == sm} == wanted
    for entry in entries:
        assert sha256_of(directory / entry.file) == entry.sha256
        assert 0 < entry.registers <= 255
        # What a block of each architecture may ask for (CUDA programming guide, compute capabilities).
        assert entry.shared_bytes <= (99 if entry.sm in (86, 89, 120) else 163) * 1024
        # global_scratch and profile_scratch of triton-lang 3.9's ABI.
        assert entry.hidden_pointers == 2
    table = (directory / "resources.md").read_text()
    assert sum(line.count(" / ") for line in table.splitlines() if line.startswith("| ")) == len(entries)


def test_one_kernel_compiles(tmp_path: Path) -> None:
    """The quick one: a kernel without matrices for one SM, through the same code."""
    script = (
        "import sys; from pathlib import Path\n"
        "from trtdecode.kernels.aot import compile_all\n"
        "from trtdecode.kernels.catalogue import SHAPES, variants_of\n"
        "found = variants_of(SHAPES['smollm2-135m'], 'f16', ['int8'])\n"
        "compile_all([pair for pair in found if pair[0].name == 'kv_write'], [90], Path(sys.argv[1]), 1)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=True, timeout=120)
    (entry,) = read_cubin_manifest(tmp_path)
    assert (entry.kernel, entry.sm, entry.entry_point) == ("kv_write", 90, "_kv_write_kernel")
    assert (tmp_path / entry.file).read_bytes().startswith(b"\x7fELF")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are not interpreted here")
def test_interpreted_kernels_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path), "--sm", "90", "--shape", "smollm2-135m", "--kv", "f16"]) == 1
    assert "TRITON_INTERPRET is set: kernels are interpreted, not compiled; unset it" in capsys.readouterr().err


def test_the_catalogue_is_what_serving_launches() -> None:
    found = variants_of(ModelShape(9, 3, 64, 576), "f16", ["f16", "int8", "fp8"])
    names = [kernel.name for kernel, _ in found]
    counts = {name: names.count(name) for name in names}
    assert counts == {
        "kv_write": 3,
        "attend_decode": 6,  # with and without split-K
        "attend_prefill": 3,
        "attend_merge": 1,
        "residual_rmsnorm": 1,
        "residual_layernorm": 1,
        "layernorm_gelu": 1,
    }
    assert sum(variant.uses_fp8 for _, variant in found) == 4


def test_resources_are_read_exactly() -> None:
    text = (
        "\nResource usage:\n Common:\n  GLOBAL:0\n Function _kernel:\n"
        "  REG:21 STACK:8 SHARED:1024 LOCAL:4 CONSTANT[0]:984 TEXTURE:0 SURFACE:0 SAMPLER:0\n"
    )
    assert parse_res_usage(text) == {"_kernel": Resources(21, 8, 1024, 4)}
    assert parse_res_usage(text)["_kernel"].spills
    for broken in ("", text.replace("STACK", "STOCK")):
        with pytest.raises(LoadError, match="cuobjdump -res-usage: read 0 of"):
            parse_res_usage(broken)


def entry_of(kernel: str, sm: int, **changes: object) -> CubinEntry:
    constants = {"HEAD_DIM": 64, "GROUP": 3, "BLOCK_SIZE": 16, "QUANTISATION": "int8", "DECODE": True, "SPLIT": True}
    entry = CubinEntry("key", kernel, sm, "f", "0", "e", ("*fp16", "*i8"), constants, 4, 2, 512, 2, 99, 0, 0)
    return dataclasses.replace(entry, **changes)  # type: ignore[arg-type]


def test_the_table_has_a_row_a_variant_and_a_column_an_sm() -> None:
    spilling = entry_of("attend", 90, stack_bytes=8, local_bytes=4, registers=255)
    other = entry_of("zeta", 90, constexprs={"BLOCK": 1024}, num_warps=8)
    text = resource_table([entry_of("attend", 80), spilling, other], "triton-lang 3.9.0")
    assert "Compiled by triton-lang 3.9.0 without a GPU" in text
    assert text.splitlines()[-4:] == [
        "| kernel | variant | warps | SM 80 | SM 90 |",
        "|---|---|---|---|---|",
        "| attend | fp16, head_dim 64, group 3, blocks of 16, i8 pages, split-K | 4 "
        "| 99 / 512 | 255 / 512 (8 stack, 4 local) |",
        "| zeta | fp16, rows of up to 1024 | 8 | - | 99 / 512 |",
    ]
