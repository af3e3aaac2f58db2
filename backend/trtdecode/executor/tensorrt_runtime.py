"""TensorRT and TensorRT-RTX at run time: the only importer of either in the backend.

Contexts use memory that we give them (one buffer for all: engines run one after another on one stream). RTX contexts
compile their shape-specialised kernels before the first enqueue returns (EAGER), so that nothing is compiled during a
capture or a request, and keep them in a runtime cache on disk; RTX's own CUDA graphs are off, since we capture whole
steps.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trtdecode import support
from trtdecode.errors import LoadError, ManifestError, UnsupportedError

log = logging.getLogger(__name__)

_MODULES = {support.TENSORRT: "tensorrt", support.TENSORRT_RTX: "tensorrt_rtx"}

Shape = tuple[int, ...]


class Context(Protocol):
    """One execution context; a context enqueued in a captured graph must keep its shapes and addresses."""

    signature: str  # engine and shapes, for messages and warm-up checks

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], stream: int) -> None:
        """Input shapes within an optimisation profile."""
        ...

    def memory_bytes(self) -> int:
        """Scratch memory that the shapes set need."""
        ...

    def set_memory(self, address: int, num_bytes: int) -> None:
        """Gives the scratch memory, 256-byte aligned."""
        ...

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        """Where inputs and outputs lie on the device."""
        ...

    def is_capturable(self, stream: int) -> bool:
        """Whether its work may be captured in a CUDA graph."""
        ...

    def enqueue(self, stream: int) -> None:
        """Puts the work on a stream."""
        ...


class Engine(Protocol):
    """One deserialized engine."""

    num_profiles: int

    def profile_bytes(self, profile: int) -> int:
        """Scratch memory for the largest shapes of a profile."""
        ...

    def create_context(self) -> Context: ...


class Runtime(Protocol):
    """Loads engines of one flavour."""

    flavour: str
    version: str

    def load(self, path: Path) -> Engine:
        """Deserializes. Raises ManifestError when this runtime or GPU cannot."""
        ...

    def save_cache(self) -> None:
        """Writes what was compiled at run time to the cache file, if there is one. Failure is logged, not raised."""
        ...


class TensorRtRuntime:
    """The real `Runtime`.

    Args:
        flavour: "tensorrt" or "tensorrt-rtx".
        cache_file: RTX's runtime cache; its name holds GPU and driver, since it is of use on these only.

    Raises:
        UnsupportedError: the flavour is not installed.
    """

    def __init__(self, flavour: str, cache_file: Path | None = None) -> None:
        try:
            self._trt = importlib.import_module(_MODULES[flavour])
        except ImportError as error:
            raise UnsupportedError(f"{flavour}: {error}; install it, or use executor torch") from error
        self.flavour = flavour
        self.version = str(self._trt.__version__)
        self._logger = self._trt.Logger(self._trt.Logger.WARNING)
        self._runtime = self._trt.Runtime(self._logger)
        if self._runtime is None:
            raise LoadError(f"{flavour} {self.version}: no runtime could be made; is there a GPU?")
        self._cache_file = cache_file if flavour == support.TENSORRT_RTX else None
        self._cache: Any = None

    def load(self, path: Path) -> Engine:
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise ManifestError(
                f"{path}: {self.flavour} {self.version} cannot deserialize it on this GPU; "
                "build the engines again with `trtdecode build`"
            )
        return _TensorRtEngine(self._trt, engine, path.name, self._configure)

    def save_cache(self) -> None:
        if self._cache is None or self._cache_file is None:
            return
        partial = self._cache_file.with_suffix(".partial")
        try:
            self._cache_file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(memoryview(self._cache.serialize()))
            partial.replace(self._cache_file)
        except OSError as error:  # a read-only repository: kernels are compiled again at the next load
            log.warning("%s: runtime cache not saved (%s)", self._cache_file, error)

    def _configure(self, engine: Any) -> Any:
        """A runtime configuration for an engine's contexts."""
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(self._trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        if self.flavour == support.TENSORRT_RTX:
            strategy = self._trt.DynamicShapesKernelSpecializationStrategy
            config.dynamic_shapes_kernel_specialization_strategy = strategy.EAGER
            config.cuda_graph_strategy = self._trt.CudaGraphStrategy.DISABLED
            if self._cache is None:
                self._cache = self._read_cache(config)
            config.set_runtime_cache(self._cache)
        return config

    def _read_cache(self, config: Any) -> Any:
        cache = config.create_runtime_cache()
        if self._cache_file is not None and self._cache_file.is_file():
            fits = cache.deserialize(self._cache_file.read_bytes())
            log.info("%s: runtime cache %s", self._cache_file, "read" if fits else "does not fit; kernels are compiled")
        return cache


class _TensorRtEngine:
    def __init__(self, trt: Any, engine: Any, name: str, configure: Any) -> None:
        self._trt = trt
        self._engine = engine
        self._name = name
        self._config = configure(engine)
        self.num_profiles = int(engine.num_optimization_profiles)

    def profile_bytes(self, profile: int) -> int:
        return int(self._engine.get_device_memory_size_for_profile_v2(profile))

    def create_context(self) -> Context:
        context = self._engine.create_execution_context(self._config)
        if context is None:
            raise LoadError(f"{self._name}: no execution context could be made; is the device's memory full?")
        return _TensorRtContext(self._trt, context, self._name)


class _TensorRtContext:
    def __init__(self, trt: Any, context: Any, name: str) -> None:
        self._trt = trt
        self._context = context
        self._name = name
        self._profile = 0  # what a new context has
        self.signature = name

    def set_shapes(self, profile: int, shapes: Mapping[str, Shape], stream: int) -> None:
        if profile != self._profile:
            self._done(self._context.set_optimization_profile_async(profile, stream), f"profile {profile}")
            self._profile = profile
        for name, shape in shapes.items():
            self._done(self._context.set_input_shape(name, shape), f"shape {shape} of {name}")
        self.signature = f"{self._name} profile {profile} {dict(shapes)}"

    def memory_bytes(self) -> int:
        return int(self._context.update_device_memory_size_for_shapes())

    def set_memory(self, address: int, num_bytes: int) -> None:
        self._context.set_device_memory(address, num_bytes)

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            self._done(self._context.set_tensor_address(name, address), f"address of {name}")

    def is_capturable(self, stream: int) -> bool:
        # The data-centre flavour has no such question: its enqueue may always be captured after a first run.
        ask = getattr(self._context, "is_stream_capturable", None)
        return True if ask is None else bool(ask(stream))

    def enqueue(self, stream: int) -> None:
        self._done(self._context.execute_async_v3(stream), "enqueue")

    def _done(self, ok: bool, what: str) -> None:
        if not ok:
            raise RuntimeError(f"{self.signature}: TensorRT refused {what}; its log (above) says why")
