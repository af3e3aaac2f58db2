"""The executors under test. A new executor joins the kit with one entry in `EXECUTORS`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance.tiny_graph import TinySpec
from trtdecode.errors import UnsupportedError
from trtdecode.executor.base import Executor

POOL_BYTES = 1 << 22


def _torch(graph_path: Path) -> Executor:
    from trtdecode.executor.torch_executor import TorchExecutor

    return TorchExecutor(graph_path, kv_cache_bytes=POOL_BYTES)


def _torch_cuda(graph_path: Path) -> Executor:
    from trtdecode.executor.cuda_device import TorchCudaDevice
    from trtdecode.executor.device_step import StepLimits
    from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor

    return TorchCudaExecutor(
        graph_path,
        device=TorchCudaDevice("cuda:0"),
        limits=StepLimits(max_num_seqs=8, max_num_batched_tokens=256, max_context_len=512),
        dtype="f32",
        kv_cache_bytes=POOL_BYTES,
    )


def _openvino(graph_path: Path) -> Executor:
    from trtdecode.executor.openvino_executor import OpenVinoExecutor

    return OpenVinoExecutor(graph_path, kv_cache_bytes=POOL_BYTES, attention="openvino")


def _openvino_native(graph_path: Path) -> Executor:
    from trtdecode.executor.openvino_executor import OpenVinoExecutor
    from trtdecode.executor.openvino_native_attention import library

    if library() is None:
        pytest.skip("the native attention is not built")
    return OpenVinoExecutor(graph_path, kv_cache_bytes=POOL_BYTES, attention="native")


EXECUTORS: dict[str, Callable[[Path], Executor]] = {
    "torch": _torch,
    "openvino": _openvino,
    "openvino-native": _openvino_native,
    "torch-cuda": _torch_cuda,
}

MakeExecutor = Callable[[TinySpec], Executor]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.gpu] if "cuda" in name else []) for name in EXECUTORS])
def make_executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeExecutor]:
    """Makes an executor for a tiny decoder, float32 throughout; a declared UnsupportedError skips the test."""
    made: list[Executor] = []

    def make(spec: TinySpec) -> Executor:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        try:
            made.append(EXECUTORS[request.param](spec.write(directory)))
        except UnsupportedError as error:
            pytest.skip(str(error))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture(scope="session")
def reference() -> Callable[[TinySpec], object]:
    """The numpy decoder of a spec."""
    from conformance.numpy_reference import NumpyDecoder

    return functools.cache(NumpyDecoder)
