"""`EngineFromOnnx`: one ONNX file to one serialized engine and its list of compiled kernels, through Polygraphy.

Strongly typed: the types in the graph are the types that run, explicit Q/DQ included. Verbosity is detailed, so that
the builder lists what it compiled. RTX engines require user allocation, without which a stream capture (a CUDA graph)
refuses them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtdecode.errors import BuildError, UnsupportedError

from trtbuild.engine.builder_log import kernels_from_log
from trtbuild.engine.flavour import TensorRt
from trtbuild.engine.inspector import kernels_from_inspector
from trtbuild.engine.layer_report import Kernel

#: (minimum, optimum, maximum) shape of one input
ShapeRange = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What to build."""

    onnx_path: Path
    sm: int
    profiles: Sequence[Mapping[str, ShapeRange]]  # one mapping a profile: input name -> range; static inputs left out
    workspace_bytes: int = 0  # 0: the builder's default
    timing_cache: Path | None = None


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """What came of it. `serialized` is the builder's own host memory (a buffer): write it, don't copy it."""

    serialized: Any
    num_bytes: int
    kernels: tuple[Kernel, ...]
    seconds: float


def build_engine(tensorrt: TensorRt, request: EngineRequest) -> EngineBuild:
    """Builds one engine.

    Raises:
        UnsupportedError: the graph has operators that the parser does not know; each is named with its node.
        BuildError: the builder refused; the text carries its own first error.
    """
    log = _MessageLog.create(tensorrt.module)
    started = time.monotonic()
    builder, network, parser = _network_from_onnx(tensorrt, request.onnx_path, log)
    serialized = _serialize(tensorrt, request, (builder, network, parser), log)
    kernels = _kernels(tensorrt, serialized, log)
    return EngineBuild(serialized, serialized.nbytes, kernels, time.monotonic() - started)


def _network_from_onnx(tensorrt: TensorRt, path: Path, log: Any) -> tuple[Any, Any, Any]:
    """Polygraphy's `NetworkFromOnnxPath`, with a logger of our own: its logger is global and prints."""
    trt = tensorrt.module
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    # From the file, so that external data is mapped by the parser and not loaded by us as well.
    if parser.parse_from_file(str(path)):
        return builder, network, parser
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    raise UnsupportedError(
        f"{path.name}: TensorRT's parser refuses {'; '.join(_describe(error) for error in errors) or 'the file'}; "
        "rewrite these nodes with operators that TensorRT supports"
    )


def _describe(error: Any) -> str:
    """One parser error: operator and node by name, then the parser's reason on one line."""
    reason = " ".join(str(error.desc()).split())
    return f"{error.node_operator() or 'a node'} (node {error.node_name() or '?'}): {reason}"


def _serialize(tensorrt: TensorRt, request: EngineRequest, network: tuple[Any, Any, Any], log: Any) -> Any:
    from polygraphy.backend.trt import EngineBytesFromNetwork, PostprocessConfig
    from polygraphy.exception import PolygraphyException

    config = PostprocessConfig(_create_config(tensorrt, request), func=_flag_setter(tensorrt))
    cache = _timing_cache(tensorrt, request)
    try:
        with _quiet_polygraphy(), warnings.catch_warnings():
            # Polygraphy sets a timing cache in any case; RTX says that its own does nothing.
            warnings.filterwarnings("ignore", "Use Deprecated in TensorRT-RTX", DeprecationWarning)
            return EngineBytesFromNetwork(network, config=config, save_timing_cache=cache)()
    except PolygraphyException as error:
        reason = log.errors[0] if log.errors else str(error)
        raise BuildError(f"{request.onnx_path.name}: {tensorrt.flavour} cannot build it: {reason}") from error


def _create_config(tensorrt: TensorRt, request: EngineRequest) -> Callable[[Any, Any], Any]:
    from polygraphy.backend.trt import CreateConfig, Profile

    trt = tensorrt.module
    profiles = []
    for ranges in request.profiles:
        profile = Profile()
        for name, (smallest, optimum, largest) in ranges.items():
            profile.add(name, smallest, optimum, largest)
        profiles.append(profile)
    options: dict[str, Any] = {
        "profiles": profiles,
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "load_timing_cache": _timing_cache(tensorrt, request),
    }
    if request.workspace_bytes:
        options["memory_pool_limits"] = {trt.MemoryPoolType.WORKSPACE: request.workspace_bytes}
    if not tensorrt.is_rtx:
        return CreateConfig(**options)  # type: ignore[no-any-return]  # builds for the GPU of this machine
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX

    return CreateConfigRTX(  # type: ignore[no-any-return]
        use_gpu=False, compute_capabilities=[divmod(request.sm, 10)], **options
    )


def _timing_cache(tensorrt: TensorRt, request: EngineRequest) -> str | None:
    """RTX chooses kernels on the user's machine, so at build time it has nothing to measure and no cache."""
    return str(request.timing_cache) if request.timing_cache and not tensorrt.is_rtx else None


def _flag_setter(tensorrt: TensorRt) -> Callable[[Any, Any, Any], None]:
    def set_flags(builder: Any, network: Any, config: Any) -> None:
        del builder, network
        if tensorrt.is_rtx:
            config.set_flag(tensorrt.module.BuilderFlag.REQUIRE_USER_ALLOCATION)

    return set_flags


def _kernels(tensorrt: TensorRt, serialized: Any, log: Any) -> tuple[Kernel, ...]:
    if tensorrt.is_rtx:  # deserializing, which the inspector needs, asks for a GPU; the log does not
        return kernels_from_log(log.messages)
    engine = tensorrt.module.Runtime(log).deserialize_cuda_engine(serialized)
    if engine is None:
        raise BuildError(f"the engine just built does not deserialize: {log.errors[:1]}; is this the GPU it is for?")
    formats = tensorrt.module.LayerInformationFormat
    return kernels_from_inspector(engine.create_engine_inspector().get_engine_information(formats.JSON))


class _MessageLog:
    """Collects the builder's messages. The class is made at run time because its base comes from the flavour."""

    @staticmethod
    def create(trt: Any) -> Any:
        class Log(trt.ILogger):  # type: ignore[misc]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)
                self.messages: list[str] = []
                self.errors: list[str] = []

            def log(self, severity: Any, message: str) -> None:
                if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                    self.errors.append(" ".join(message.split()))
                elif message.startswith("Layers:"):  # the rest of the verbose log is megabytes
                    self.messages.append(message)

        return Log()


def _quiet_polygraphy() -> Any:
    """Polygraphy logs to stdout on its own; its failures come back as exceptions anyway."""
    from polygraphy.logger import G_LOGGER

    return G_LOGGER.verbosity(G_LOGGER.CRITICAL + 1)
