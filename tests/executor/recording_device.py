"""A `Device` on the CPU that records every call, captures like a CUDA graph, and refuses what a GPU would.

Capture keeps each torch operator and each kernel launch with its arguments as they were: replay runs exactly those
again, into the same tensors. So host values are frozen at capture, as in a CUDA graph, and tokens that come out right
have come through real capture and replay. Breaking a rule of `cuda_device.py` raises DeviceRuleError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from trtdecode.executor.cuda_device import CapturedGraph, EngineContext
from trtdecode.kernels.launch import Constexprs, Grid, JitLauncher, Kernel, variant_of

T = TypeVar("T")

_HOST_READS = {
    getattr(torch.Tensor, name)
    for name in ("tolist", "item", "numpy", "cpu", "__int__", "__bool__", "__float__", "__index__")
}


class DeviceRuleError(AssertionError):
    """A call order that a GPU would punish with a wrong result, a crash or a stall."""


class RecordingDevice:
    """See `cuda_device.Device`. `calls` lists what was done, by name; `num_multiprocessors` steers split-K."""

    def __init__(self, *, sm: int = 90, num_multiprocessors: int = 2, free_bytes: int = 1 << 24) -> None:
        self.sm = sm
        self.num_multiprocessors = num_multiprocessors
        self.torch_device = torch.device("cpu")
        self.stream = 77
        self.calls: list[str] = []
        self.launcher = self._launch
        self._free_bytes = free_bytes
        self._jit = JitLauncher()
        self._tape: list[Callable[[], None]] | None = None  # while capturing
        self._is_replaying = False
        self._ran: set[Any] = set()  # what has run eagerly: kernels, engine shapes, operators with their shapes
        self._storages: set[int] = set()
        self._null_rows: torch.Tensor | None = None  # of the last kv_write: which tokens wrote to the null block

    # -- memory and copies ------------------------------------------------------------------------------------------

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._refuse_allocation()
        self.calls.append("allocate")
        with _disable_current_modes():
            tensor = torch.zeros(tuple(shape), dtype=dtype)
        self._storages.add(tensor.untyped_storage().data_ptr())
        return tensor

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        self._refuse_allocation()
        self.calls.append("allocate_pinned")
        with _disable_current_modes():
            return torch.empty(tuple(shape), dtype=dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if self._tape is not None and not (self._is_mine(target) and self._is_mine(source)):
            raise DeviceRuleError("copy between host and device while capturing: a graph would freeze the host's side")
        self.calls.append("copy")
        with _disable_current_modes():
            target.copy_(source)

    # -- work -------------------------------------------------------------------------------------------------------

    def enqueue(self, context: EngineContext) -> None:
        signature = context.signature  # type: ignore[attr-defined]
        self._need_warm_up(signature, f"engine {signature}")
        self.calls.append("enqueue")
        if self._tape is not None:
            context.is_captured = True  # type: ignore[attr-defined]
        self._do(lambda: context.enqueue(self.stream))

    def run(self, work: Callable[[], T]) -> T:
        if self._is_replaying:
            raise DeviceRuleError("eager work on the path of a replayed step")
        self.calls.append("run")
        with _Watch(self):
            return work()

    def capture(self, work: Callable[[], T]) -> CapturedGraph[T]:
        self.calls.append("capture")
        self._tape = []
        try:
            with _NoHostReads(self), _Watch(self):
                result = work()
            tape = self._tape
        finally:
            self._tape = None
        for tensor in tree_leaves(result.__dict__ if hasattr(result, "__dict__") else result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                with torch.inference_mode():
                    tensor.fill_(float("nan"))  # capture computes nothing: only a replay does
        return CapturedGraph(tape, result)

    def replay(self, graph: CapturedGraph[T]) -> T:
        self.calls.append("replay")
        with _disable_current_modes(), torch.inference_mode():
            for step in graph.handle:
                step()
        return graph.result

    def synchronize(self) -> None:
        if self._tape is not None:
            raise DeviceRuleError("synchronize while capturing")
        self.calls.append("synchronize")

    @contextmanager
    def replaying(self) -> Iterator[None]:
        self._is_replaying = True
        try:
            with _NoNewTensors():
                yield
        finally:
            self._is_replaying = False

    def free_bytes(self) -> int:
        return self._free_bytes

    # -- rules ------------------------------------------------------------------------------------------------------

    def _refuse_allocation(self) -> None:
        if self._is_replaying:
            raise DeviceRuleError("allocation in replay: a replayed step must use what is there")
        if self._tape is not None:
            raise DeviceRuleError("allocation in capture: allocate before, so that the address outlives the graph")

    def _need_warm_up(self, signature: Any, what: str) -> None:
        if self._tape is None:
            self._ran.add(signature)
        elif signature not in self._ran:
            raise DeviceRuleError(f"capture before warm-up: {what} has not run yet; run the step once before capture")

    def _is_mine(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._storages

    def _do(self, call: Callable[[], None]) -> None:
        """Runs a launch now, and again at each replay."""
        with _disable_current_modes():
            call()
        if self._tape is not None:
            self._tape.append(call)

    def _launch(self, kernel: Kernel, grid: Grid, args: Sequence[Any], constexprs: Constexprs) -> None:
        key = variant_of(kernel, args, constexprs).key
        self._need_warm_up(key, key)
        self.calls.append(kernel.name)
        named = dict(zip(kernel.argument_names, args, strict=True))

        def call() -> None:
            self._check_padding(kernel.name, named, constexprs)
            self._jit(kernel, grid, args, constexprs)

        self._do(call)

    def _check_padding(self, kernel: str, named: dict[str, Any], constexprs: Constexprs) -> None:
        """Rule 4, on the values that are there when the kernel really runs."""
        if kernel == "kv_write":
            self._null_rows = named["slots"] < constexprs["BLOCK_SIZE"]
        elif kernel == "attend_decode" and self._null_rows is not None:
            begins = named["query_begins"]
            rows = begins[:-1][begins.diff() == 1].long()
            empty = (named["context_lens"] == 0)[begins.diff() == 1]
            if not torch.equal(self._null_rows[rows], empty):
                raise DeviceRuleError(
                    f"wrong padding: context lengths {named['context_lens'].tolist()}, rows that write to the null "
                    f"block {self._null_rows.tolist()}; padding rows have length 0 and write there, others do neither"
                )


class _Watch(TorchDispatchMode):
    """Sees every torch operator: remembers it when eager, puts it on the tape when capturing."""

    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = self._device
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_device = any(device._is_mine(tensor) for tensor in inputs)
        if device._tape is not None and on_device and "_local_scalar_dense" in str(func):
            raise DeviceRuleError("host read of a device value while capturing: a graph would freeze it")
        result = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        known = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        fresh = [tensor for tensor in outputs if tensor.untyped_storage().data_ptr() not in known]
        if fresh or func._schema.is_mutable:  # a view is no device work
            shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
            device._need_warm_up((str(func), shapes), f"{func} on {shapes}")
        if on_device or not inputs:
            device._storages.update(tensor.untyped_storage().data_ptr() for tensor in fresh)
        if device._tape is not None:
            if func._schema.is_mutable:
                device._tape.append(lambda: func(*args, **kwargs))
            elif fresh:
                device._tape.append(lambda: _again(func, args, kwargs, outputs))
        return result


def _again(func: Any, args: Any, kwargs: Any, outputs: list[torch.Tensor]) -> None:
    renewed = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    for target, source in zip(outputs, renewed, strict=True):
        target.copy_(source)


class _NoHostReads(TorchFunctionMode):
    """Rule 3: refuses to give the host a value of a device tensor."""

    def __init__(self, device: RecordingDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS and self._device._is_mine(args[0]):
            raise DeviceRuleError(
                f"host read ({func.__name__}) of a device value while capturing: a graph would freeze it"
            )
        return func(*args, **(kwargs or {}))


class _NoNewTensors(TorchDispatchMode):
    """Rule 2: a replayed step makes views at most."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        known = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in known:
                raise DeviceRuleError(f"allocation in replay: {func} made a tensor")
        return result
