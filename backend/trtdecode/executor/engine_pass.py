"""One pass of the decoder through TensorRT engines and our kernels: the steps of `segments.json`, in order.

Each engine has a context for every captured batch size, whose shapes and addresses never change, and one more for all
other steps. All contexts use one scratch buffer, as large as the neediest of them: engines run one after another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtdecode.errors import LoadError, UnsupportedError
from trtdecode.executor.base import HIDDEN_INPUT, HIDDEN_OUTPUT
from trtdecode.executor.cuda_graphs import StepOutput
from trtdecode.executor.device_runner import output_of
from trtdecode.executor.engine_steps import EngineStep, EngineSteps, GatherStep, RowsStep, SeamStep, Step
from trtdecode.executor.tensorrt_runtime import Context, Engine, Runtime, Shape
from trtdecode.executor.value_buffers import ValueBuffers, reads_of, resolve, writes_of

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.device_pages import KernelAttention
    from trtdecode.executor.device_step import DeviceStep
    from trtdecode.executor.ranks.links import RankLinks


@dataclass
class ContextReport:
    """What the contexts cost."""

    num_contexts: int = 0
    scratch_bytes: int = 0  # one buffer for all
    host_bytes: int = 0  # of all contexts together, as the process grew
    per_size: dict[int, int] = field(default_factory=dict)  # batch size -> the neediest context's scratch bytes

    def __str__(self) -> str:
        sizes = ", ".join(f"{size}: {num_bytes}" for size, num_bytes in sorted(self.per_size.items()))
        each = self.host_bytes // max(1, self.num_contexts)
        return (
            f"{self.num_contexts} contexts, {each} host bytes each, one scratch buffer of {self.scratch_bytes} "
            f"device bytes (by batch size: {sizes or 'eager only'})"
        )


class EnginePass:
    """Calling it does all device work of a step.

    Args:
        tables: the tensors of `tables.safetensors`, on the device.
        inputs: the step buffer's arrays that engines may read as they are (`StepBuffer.inputs`).
        attention: runs the PagedAttention seams.
        sizes: batch sizes to be captured: each gets contexts of its own.
        links: to the other tensor-parallel ranks, where the engines are one rank's part.

    Raises:
        ManifestError: an engine does not load.
        UnsupportedError: a seam operator that nothing here runs, or an engine that cannot be captured.
    """

    def __init__(
        self,
        device: Device,
        runtime: Runtime,
        directory: Path,
        steps: EngineSteps,
        tables: Mapping[str, torch.Tensor],
        inputs: Mapping[str, torch.Tensor],
        attention: KernelAttention,
        *,
        max_tokens: int,
        max_rows: int,
        sizes: Iterable[int],
        links: RankLinks | None = None,
    ) -> None:
        self._device = device
        self._steps = steps
        self._tables = tables
        self._inputs = inputs
        self._attention = attention
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._links = links
        _check_seams(steps, links)
        self._engines: dict[str, Engine] = {name: runtime.load(directory / name) for name in steps.segment_files}
        self.report = ContextReport()
        self._captured_values = ValueBuffers(device, steps, max_tokens=max_tokens, max_rows=max_rows)
        self._eager_values = self._captured_values
        self._make_contexts(tuple(sizes))

    def __call__(self, step: DeviceStep) -> StepOutput:
        """Work on the device only; a captured size's contexts are ready, another's are given their shapes here."""
        num_tokens, num_rows = step.num_tokens, step.num_rows
        if num_rows > self._max_rows:
            self._grow(num_rows)
        contexts, buffers = self._captured.get(num_tokens), self._captured_values
        if contexts is None or num_tokens != num_rows:
            contexts, buffers = self._eager, self._eager_values
            for engine_step, context in zip(self._engine_steps(), contexts.values(), strict=True):
                if num_rows == 0 and engine_step.dimension == "S":
                    continue
                self._shape(context, engine_step, num_tokens, num_rows)
                # A change of profile may drop them, and larger row buffers move them.
                self._place(context, engine_step, buffers)
        values = _Values(buffers, self._inputs, step)
        for work in self._steps.steps:
            if num_rows == 0 and self._is_for_rows(work):
                continue  # a chunk of a prompt that does not end it: no engine takes an empty tensor
            match work:
                case GatherStep():
                    self._gather(work, values)
                case RowsStep():
                    self._rows(work, values)
                case EngineStep():
                    self._device.enqueue(contexts[work.file])
                case SeamStep(operator="AllReduce"):
                    self._all_reduce(work, values)
                case SeamStep():
                    query, key, value = (values[name] for name in work.inputs[:3])
                    self._attention(work.name, step, query, key, value, values[work.output])
        return output_of(values[self._steps.output])

    def _is_for_rows(self, work: Step) -> bool:
        """Whether a step works on logit rows (S) instead of tokens (T)."""
        return any(self._steps.tensors[name].shape[0] == "S" for name in writes_of(work))

    # -- steps between engines ------------------------------------------------------------------------------------

    def _gather(self, work: GatherStep, values: _Values) -> None:
        import torch

        table, indices, output = self._tables[work.table], values[work.indices], values[work.output]
        if not work.scales and work.axis == 0 and table.dtype == output.dtype:
            torch.index_select(table, 0, indices, out=output)
            return
        picked = table.index_select(work.axis, indices)
        rows = (picked if work.axis == 0 else picked.T).to(output.dtype)
        if work.scales:
            rows = rows * self._tables[work.scales].index_select(0, indices)[:, None].to(output.dtype)
        output.copy_(rows)

    def _rows(self, work: RowsStep, values: _Values) -> None:
        import torch

        torch.index_select(values[work.input], 0, values["logit_indices"], out=values[work.output])

    def _all_reduce(self, work: SeamStep, values: _Values) -> None:
        """Into the output's own place, which a captured engine reads: the ranks' sum may come in another."""
        assert self._links is not None, "refused at load"
        output = values[work.output]
        output.copy_(values[work.inputs[0]])
        total = self._links.all_reduce(output)
        if total is not output:
            output.copy_(total)

    # -- contexts -------------------------------------------------------------------------------------------------

    def _engine_steps(self) -> list[EngineStep]:
        return [step for step in self._steps.steps if isinstance(step, EngineStep)]

    def _make_contexts(self, sizes: tuple[int, ...]) -> None:
        import torch

        before = resident_bytes()
        self._eager = {name: engine.create_context() for name, engine in self._engines.items()}
        self._captured = {
            size: {name: engine.create_context() for name, engine in self._engines.items()} for size in sizes
        }
        self.report.num_contexts = len(self._engines) * (1 + len(sizes))
        needs = [
            engine.profile_bytes(profile) for engine in self._engines.values() for profile in range(engine.num_profiles)
        ]
        for size, contexts in self._captured.items():
            for step in self._engine_steps():
                self._shape(contexts[step.file], step, size, size)
            self.report.per_size[size] = max(context.memory_bytes() for context in contexts.values())
        self.report.scratch_bytes = max([*needs, *self.report.per_size.values(), 1])
        self.report.host_bytes = max(0, resident_bytes() - before)
        self._scratch = self._device.allocate((self.report.scratch_bytes,), torch.uint8)
        for contexts in self._captured.values():
            for step in self._engine_steps():
                self._place(contexts[step.file], step, self._captured_values)
        for contexts in self._captured.values():
            for name, context in contexts.items():
                if not context.is_capturable(self._device.stream):
                    raise UnsupportedError(
                        f"{name}: this engine cannot be captured in a CUDA graph (RTX needs REQUIRE_USER_ALLOCATION); "
                        "build it again with `trtdecode build`, or set optimization.cuda.graphs to false"
                    )

    def _shape(self, context: Context, step: EngineStep, num_tokens: int, num_rows: int) -> None:
        sizes = {"T": num_tokens, "S": num_rows}
        shapes: dict[str, Shape] = {}
        for name in step.inputs:
            if name in self._inputs:
                shapes[name] = (sizes[step.dimension],)
            elif name not in self._tables:  # the engine knows a table's shape
                shapes[name] = resolve(self._steps.tensors[name], sizes)
        context.set_shapes(self._steps.profile_for(sizes[step.dimension]), shapes, self._device.stream)

    def _place(self, context: Context, step: EngineStep, values: ValueBuffers) -> None:
        """Scratch memory and the addresses of inputs and outputs, which hold for every shape."""
        context.set_memory(int(self._scratch.data_ptr()), self.report.scratch_bytes)
        addresses = {}
        for name in (*step.inputs, *step.outputs):
            fixed = self._tables.get(name, self._inputs.get(name))
            if fixed is None and name not in values:
                raise LoadError(f"{step.file}: reads {name!r}, which no step writes; build the engines again")
            addresses[name] = values.address(name) if fixed is None else int(fixed.data_ptr())
        context.set_addresses(addresses)

    def _grow(self, num_rows: int) -> None:
        """Prompt logprobs ask for more logit rows than there are sequences: eager steps get larger buffers."""
        self._max_rows = num_rows
        self._eager_values = ValueBuffers(self._device, self._steps, max_tokens=self._max_tokens, max_rows=num_rows)


class _Values:
    """The tensors of one pass, by name."""

    def __init__(self, buffers: ValueBuffers, inputs: Mapping[str, torch.Tensor], step: DeviceStep) -> None:
        self._buffers = buffers
        self._inputs = inputs
        self._step = step

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self._inputs:
            tensor: torch.Tensor = getattr(self._step, name)
            return tensor
        return self._buffers.view(name, self._step.num_tokens, self._step.num_rows)


def _check_seams(steps: EngineSteps, links: RankLinks | None) -> None:
    known = ("PagedAttention",) if links is None else ("PagedAttention", "AllReduce")
    for step in steps.steps:
        if isinstance(step, SeamStep) and step.operator not in known:
            raise UnsupportedError(
                f"seam {step.name!r}: the TensorRT executor has no {step.operator} here; "
                "an AllReduce is for one of several ranks, see tensor_parallel_size"
            )
    if HIDDEN_INPUT in (name for step in steps.steps for name in reads_of(step)) or steps.output == HIDDEN_OUTPUT:
        raise UnsupportedError(
            "the engines are one stage of a pipeline, which executor tensorrt does not run; "
            "use executor torch, or import with pipeline_parallel_size 1"
        )


def resident_bytes() -> int:
    """The process's resident memory (Linux); 0 where it cannot be read."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * 4096
