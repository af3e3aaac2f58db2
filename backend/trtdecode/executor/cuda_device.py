"""Every call that touches a GPU: memory, copies, engines, capture and replay, on one stream.

Executors do all device work through a `Device`, so that the order of the calls can be tested on a CPU with a device
that records them (`tests/executor/recording_device.py`). The rules it enforces:

1. What is captured has run once before (kernels are compiled, handles and workspaces made, lazily at the first run).
2. Nothing is allocated while a captured step is replayed.
3. Captured work reads no device value on the host: a graph would freeze it.
4. Padding rows have context length 0 and write to the null block; other rows do neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from trtdecode.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from trtdecode.kernels.launch import Launcher

T = TypeVar("T")


class EngineContext(Protocol):
    """A TensorRT execution context whose shapes and addresses are set."""

    def enqueue(self, stream: int) -> None:
        """Puts the engine's work on a stream (a CUDA stream handle)."""
        ...


@dataclass(frozen=True)
class CapturedGraph(Generic[T]):
    """Captured work, and what it returned: tensors whose content each replay renews."""

    handle: Any
    result: T


class Device(Protocol):
    """One GPU with one stream. All calls come from one thread, in stream order."""

    sm: int  # compute capability, 89 for 8.9
    num_multiprocessors: int
    torch_device: torch.device
    launcher: Launcher  # of triton-lang kernels, on the stream

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed device memory for the life of the executor."""
        ...

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Page-locked host memory, from which copies are asynchronous."""
        ...

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies on the stream; a host side must be pinned and left alone until `synchronize`."""
        ...

    def enqueue(self, context: EngineContext) -> None:
        """Runs an engine on the stream."""
        ...

    def run(self, work: Callable[[], T]) -> T:
        """Calls `work` with the stream current: torch operators inside go to it."""
        ...

    def capture(self, work: Callable[[], T]) -> CapturedGraph[T]:
        """Records the device work of `work` instead of running it. Rules 1 and 3 above."""
        ...

    def replay(self, graph: CapturedGraph[T]) -> T:
        """Runs captured work again. Rules 2 and 4 above."""
        ...

    def synchronize(self) -> None:
        """Waits until the stream is empty."""
        ...

    def replaying(self) -> Any:
        """A context manager around everything the host does for a replayed step."""
        ...

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        ...

    @property
    def stream(self) -> int:
        """The stream's CUDA handle."""
        ...


class TorchCudaDevice:
    """The real device, through torch.

    Args:
        device: "cuda" or "cuda:N".
        busy_wait: spin in `synchronize` (lower latency, one core) instead of sleeping on an event.

    Raises:
        ConfigError: torch cannot use this GPU.
    """

    def __init__(self, device: str, *, busy_wait: bool = False) -> None:
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                f"device {device}: torch finds no usable GPU; install a CUDA build of torch, or use KIND_CPU"
            )
        self.torch_device = torch.device(device)
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.sm = 10 * properties.major + properties.minor
        self.num_multiprocessors = properties.multi_processor_count
        self._stream = torch.cuda.Stream(self.torch_device)
        self._done = torch.cuda.Event(blocking=not busy_wait)
        self._pool: Any = None  # memory that all captured graphs share
        self.launcher = make_launcher(self.sm, lambda: self.stream)

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        import torch

        with torch.cuda.stream(self._stream):
            return torch.zeros(tuple(shape), dtype=dtype, device=self.torch_device)

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        import torch

        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        import torch

        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def enqueue(self, context: EngineContext) -> None:
        import torch

        with torch.cuda.stream(self._stream):  # makes this GPU the thread's current one
            context.enqueue(self.stream)

    def run(self, work: Callable[[], T]) -> T:
        import torch

        with torch.cuda.stream(self._stream):
            return work()

    def capture(self, work: Callable[[], T]) -> CapturedGraph[T]:
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # thread_local: another thread (the loop, preparing a step) may allocate while this one captures.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = work()
        return CapturedGraph(graph, result)

    def replay(self, graph: CapturedGraph[T]) -> T:
        import torch

        with torch.cuda.stream(self._stream):
            graph.handle.replay()
        return graph.result

    def synchronize(self) -> None:
        self._done.record(self._stream)
        self._done.synchronize()

    @contextmanager
    def replaying(self) -> Iterator[None]:
        yield  # the rules are the recording device's to enforce

    def free_bytes(self) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self.torch_device)[0])


def make_launcher(sm: int, stream: Callable[[], int]) -> Launcher:
    """Cubins of the installed backend folder where they fit, else the kernel compiler.

    Raises:
        UnsupportedError: neither is there.
    """
    from trtdecode.kernels import language
    from trtdecode.kernels.cubin import DEFAULT_DIRECTORY, CubinLauncher
    from trtdecode.kernels.cubin_manifest import CUBIN_MANIFEST
    from trtdecode.kernels.launch import JitLauncher

    if not (DEFAULT_DIRECTORY / CUBIN_MANIFEST).is_file():
        return JitLauncher()
    fallback = JitLauncher() if language.HAVE_LANGUAGE else None
    return CubinLauncher(DEFAULT_DIRECTORY, sm, stream, fallback)
