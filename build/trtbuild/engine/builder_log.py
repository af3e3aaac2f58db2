"""Reads the list of compiled layers that the builder logs: what TensorRT really made of the graph.

At detailed verbosity the builder ends its verbose log with "Layers:" and one line a kernel (TensorRT-RTX 1.7, the
one-line form of the engine inspector). It needs no GPU, unlike the inspector. The grammar is strict: a line that it
does not know raises, because a report that silently loses kernels is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from trtdecode.errors import BuildError

from trtbuild.engine.layer_report import Kernel, KernelTensor, onnx_nodes_of, split_profile, with_profiles

_LAYER = re.compile(
    r"Name: (?P<name>.*), LayerType: (?P<kind>\w+), Inputs: \[(?P<inputs>.*)\], Constants: \[(?P<constants>.*)\], "
    r"Outputs: \[(?P<outputs>.*)\], TacticName: (?P<tactic>.*), StreamId: (?P<stream>\d+)(?:, EventId: \d+)?, "
    r"Metadata: ?(?P<metadata>.*)"
)
_TENSOR = re.compile(
    r" ?\{ Name: (?P<name>.*?), Dimensions: \[(?P<shape>[-\d,]*)\], Strides: \[[-\d,]*\], StrideOrder: \[[-\d,]*\], "
    r"Datatype: (?P<dtype>\w+), Format: [^}]*\}(?:,|$)"
)
_HEADING = "Layers:"
_NEXT_HEADING = "I/O Tensors:"


def kernels_from_log(messages: Iterable[str]) -> tuple[Kernel, ...]:
    """Every compiled kernel, in the builder's order (profile by profile).

    Args:
        messages: the log messages of one build, each possibly of many lines.

    Raises:
        BuildError: no layer list (not built at detailed verbosity), an empty one, or a line of unknown form.
    """
    lists = [message for message in messages if message.startswith(_HEADING)]
    if not lists:
        raise BuildError(
            "the builder logged no layer list; build with ProfilingVerbosity.DETAILED and a verbose logger"
        )
    kernels = with_profiles(kernel for text in lists for kernel in _kernels_of(text))
    if not kernels:
        raise BuildError("the builder's layer list is empty; report it with the ONNX file that was built")
    return kernels


def _kernels_of(text: str) -> Iterable[Kernel]:
    body = text[len(_HEADING) :].split(_NEXT_HEADING)[0]
    for line in body.splitlines():
        if line.strip():
            yield _kernel_of(line)


def _kernel_of(line: str) -> Kernel:
    match = _LAYER.fullmatch(line)
    if match is None:
        raise BuildError(f"builder's layer list has a line of unknown form: {line[:200]!r}; extend builder_log.py")
    # A kernel whose own name has no profile may still read tensors that have one.
    profile = max(split_profile(part)[1] for part in (match["name"], match["inputs"], match["outputs"]))
    return Kernel(
        name=split_profile(match["name"])[0],
        kind=match["kind"],
        profile=profile,
        inputs=_tensors_of(match["inputs"], line),
        constants=_tensors_of(match["constants"], line),
        outputs=_tensors_of(match["outputs"], line),
        onnx_nodes=onnx_nodes_of(match["metadata"]),
        tactic=match["tactic"],
        stream=int(match["stream"]),
    )


def _tensors_of(text: str, line: str) -> tuple[KernelTensor, ...]:
    tensors: list[KernelTensor] = []
    position = 0
    while position < len(text):
        match = _TENSOR.match(text, position)
        if match is None:
            raise BuildError(
                f"builder's layer list has a tensor of unknown form: {text[position : position + 120]!r} "
                f"in {line[:80]!r}; extend builder_log.py"
            )
        shape = tuple(int(size) for size in match["shape"].split(",")) if match["shape"] else ()
        tensors.append(KernelTensor(split_profile(match["name"])[0], match["dtype"], shape))
        position = match.end()
    return tuple(tensors)
