"""The TensorRT flavours installed: build, load, run and capture a small engine; and a version's engines, if given."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from check_report import Skipped
from trtdecode import support
from trtdecode.executor.cuda_device import TorchCudaDevice
from trtdecode.executor.tensorrt_runtime import TensorRtRuntime

Array = npt.NDArray[Any]

NUM_TOKENS, WIDTH = 4, 128


def run(version_dir: Path | None) -> dict[str, Any]:
    """Facts per flavour. A GPU that a flavour does not list is tried as well: what happens is the fact.

    Raises:
        Skipped: no flavour is installed.
        AssertionError: a flavour that lists this GPU fails.
    """
    from trtbuild.engine.flavour import installed_flavours

    device = TorchCudaDevice("cuda:0")
    flavours = installed_flavours()
    if not flavours:
        raise Skipped("no TensorRT flavour is installed")
    facts: dict[str, Any] = {}
    for flavour in flavours:
        listed = device.sm in support.FLAVOUR_SMS[flavour]
        try:
            facts[flavour] = {"lists_this_gpu": listed, **_small_engine(device, flavour)}
        except Exception as error:
            facts[flavour] = {"lists_this_gpu": listed, "error": f"{type(error).__name__}: {error}"[:500]}
            assert not listed, f"{flavour}: {facts[flavour]['error']}"
        break  # Polygraphy serves one flavour a process
    if version_dir is not None:
        facts["version"] = _version_tokens(device, version_dir, flavours[0])
    return facts


def _small_engine(device: TorchCudaDevice, flavour: str) -> dict[str, Any]:
    """y = x @ w in fp16: built, loaded, enqueued, captured and replayed with another x."""
    import torch
    from trtbuild.engine.engine_from_onnx import EngineRequest, build_engine
    from trtbuild.engine.flavour import load_tensorrt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.onnx"
        weight = _write_matmul(path)
        shapes = {"x": ((1, WIDTH), (NUM_TOKENS, WIDTH), (64, WIDTH))}
        built = build_engine(load_tensorrt(flavour), EngineRequest(path, device.sm, [shapes]))
        engine_path = Path(folder) / "small.engine"
        engine_path.write_bytes(memoryview(built.serialized))
        runtime = TensorRtRuntime(flavour)
        context = runtime.load(engine_path).create_context()
    x = device.allocate((NUM_TOKENS, WIDTH), torch.float16)
    y = device.allocate((NUM_TOKENS, WIDTH), torch.float16)
    context.set_shapes(0, {"x": (NUM_TOKENS, WIDTH)}, device.stream)
    scratch = device.allocate((max(1, context.memory_bytes()),), torch.uint8)
    context.set_memory(scratch.data_ptr(), scratch.numel())
    context.set_addresses({"x": x.data_ptr(), "y": y.data_ptr()})
    device.enqueue(context)
    device.synchronize()
    assert context.is_capturable(device.stream), "the engine cannot be captured"
    graph = device.capture(lambda: device.enqueue(context))
    values = np.random.default_rng(1).standard_normal((NUM_TOKENS, WIDTH)).astype(np.float16)
    device.run(lambda: x.copy_(torch.from_numpy(values)))
    device.replay(graph)
    device.synchronize()
    difference = float(np.abs(y.cpu().float().numpy() - values.astype(np.float32) @ weight.astype(np.float32)).max())
    assert difference < 0.05, f"the replayed engine is off by {difference}"
    return {"version": runtime.version, "build_seconds": round(built.seconds, 2), "replayed_difference": difference}


def _write_matmul(path: Path) -> Array:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight: Array = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float16)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="matmul")],
        "small",
        [value("x", TensorProto.FLOAT16, ["T", WIDTH])],
        [value("y", TensorProto.FLOAT16, ["T", WIDTH])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), str(path))
    return weight


def _version_tokens(device: TorchCudaDevice, version_dir: Path, flavour: str) -> dict[str, Any]:
    """Greedy tokens of the version's engines beside those of the torch executor in f32."""
    from conformance.driver import Driver
    from trtdecode.config import ServingConfig
    from trtdecode.executor.gpu_factory import GpuOptions, tensorrt_executor
    from trtdecode.executor.torch_executor import TorchExecutor
    from trtdecode.manifest import read_manifest

    manifest = read_manifest(version_dir)
    config = ServingConfig(max_num_seqs=8, kv_cache_bytes=1 << 28)
    executors = {
        "tensorrt": tensorrt_executor(config, manifest, version_dir, "cuda:0", flavour, GpuOptions()),
        "torch": TorchExecutor(version_dir / manifest.graph_file("f32"), kv_cache_bytes=1 << 28),
    }
    tokens = {}
    for name, executor in executors.items():
        driver = Driver(executor, list(range(1, executor.num_blocks)))
        (tokens[name],) = driver.greedy([driver.sequence([1, 5, 9, 2], room=20)], 16)
    facts = dict(executors["tensorrt"].describe())
    for executor in executors.values():
        executor.close()
    return {"sm": device.sm, "tokens": tokens, "same": tokens["tensorrt"] == tokens["torch"], **facts}
