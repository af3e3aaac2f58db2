"""Our own paged attention inside OpenVINO: the graph's operator becomes native/attention's, an OpenVINO extension.

It takes over the rotation of Q and K and the split of their common projection, so that a layer has seven operators
less: between two operators OpenVINO needs 2 to 3 us. Its caches have a layout of ours, known before compilation.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.openvino_graph import read_graph, spec_of

if TYPE_CHECKING:
    import openvino as ov

#: Tokens of a block; kBlockSize in native/attention/attention.h.
BLOCK_SIZE = 32
#: Bytes of a u8 cache for the scale and zero point of a token and head.
_SCALE_BYTES = 8
_LIBRARY = "libtrtdecode_openvino.so"


@functools.cache
def library() -> Path | None:
    """The built extension: beside this file, or where an editable install puts it."""
    import trtdecode.executor as package

    paths = (Path(directory) / _LIBRARY for directory in reversed([*package.__path__]))
    return next((path for path in paths if path.exists()), None)


@functools.cache
def why_unavailable() -> str:
    """Why the library cannot be used here; empty when it can."""
    import openvino as ov

    path = library()
    if path is None:
        return f"{_LIBRARY} is not built: it needs a C++ compiler when the package is installed"
    try:
        ov.Core().add_extension(path)
    except RuntimeError as error:  # of another OpenVINO than this one
        return str(error).strip().splitlines()[-1]
    return ""


def kernels_in_use() -> str:
    """The instruction set of the kernels: "avx512", "avx2" or "baseline"."""
    function = ctypes.CDLL(str(library())).trtdecode_attention_kernels
    function.restype = ctypes.c_char_p
    return str(function().decode())


def use_kernels(name: str) -> bool:
    """For tests: takes the kernels of that name from now on, in the whole process; False where the CPU lacks them."""
    return bool(ctypes.CDLL(str(library())).trtdecode_use_attention_kernels(name.encode()))


def read_decoder(core: ov.Core, graph_path: Path, kv_cache_precision: str) -> ov.Model | None:
    """Reads a decoder graph with our operator; None where it rotates anything but the Q and K of attention.

    Args:
        core: gets the extension and the conversions, for good.
        graph_path: an ONNX file.
        kv_cache_precision: "f32" or "u8".

    Raises:
        ManifestError: the file cannot be read.
    """
    converter = _Converter(core)
    model = read_graph(core, graph_path, converter.paged_attention, {"RotaryEmbedding": converter.rotary_embedding})
    if converter.left_rotations(model):
        return None
    converter.shape_caches(model, kv_cache_precision)
    return model


@dataclass(frozen=True, slots=True)
class _Rotation:
    """One RotaryEmbedding that its attention will do."""

    angles: Any = field(compare=False)  # openvino.Output f32[T, 1, rotary_dim]: cosines, then sines
    source: tuple[Any, ...]  # which cosines, sines and positions
    rotary_dim: int  # 0: whole heads
    is_interleaved: bool


class _Converter:
    """Makes our operators of a graph's nodes, which come in the order of execution."""

    def __init__(self, core: ov.Core) -> None:
        from openvino.utils.node_factory import NodeFactory

        core.add_extension(library())
        self._factory = NodeFactory()
        self._factory.add_extension(library())
        self._rotations: dict[str, _Rotation] = {}  # by the names of the nodes that mark them
        self._angles: dict[tuple[Any, ...], Any] = {}  # by the names of cosines, sines and positions
        self._step: Any = None
        self._specs: dict[str, AttentionSpec] = {}  # by the names of their caches

    def rotary_embedding(self, node: Any) -> list[Any]:
        """A mark in the place of the rotation, which the attention after it will do. An Abs is never optimised away."""
        from openvino import opset13

        x, cos, sin, *positions = (node.get_input(index) for index in range(node.get_input_size()))
        names = tuple((value.get_node().get_name(), value.get_index()) for value in (cos, sin, *positions))
        if names not in self._angles:
            angles = opset13.concat([cos, sin], -1).output(0)
            if positions:  # cos and sin are tables
                angles = opset13.gather(angles, positions[0], 0).output(0)
            self._angles[names] = angles
        mark = opset13.abs(x)
        self._rotations[mark.get_name()] = _Rotation(
            self._angles[names],
            names,
            rotary_dim=node.get_attribute("rotary_embedding_dim", 0),
            is_interleaved=bool(node.get_attribute("interleaved", 0)),
        )
        return [mark.output(0)]

    def paged_attention(self, node: Any) -> list[Any]:
        spec = spec_of(node)
        query, key, value, key_cache, value_cache, *step = (node.get_input(index) for index in range(9))
        unrotated = self._unrotated(query), self._unrotated(key)
        rotation, key_rotation = unrotated[0][1], unrotated[1][1]
        if rotation == key_rotation:
            (query, _), (key, _) = unrotated
        else:
            rotation = None  # the marks stay
        packed = _common_source(query, key, value)
        rows, begins = packed or ([query, key, value], (0, 0, 0))
        attributes = {
            **{name: getattr(spec, name) for name in ("num_heads", "num_kv_heads", "head_dim", "sliding_window")},
            "scale": spec.scale,
            "softcap": spec.softcap,
            "alibi_slopes": list(spec.alibi_slopes),
            **dict(zip(("q_begin", "k_begin", "v_begin"), begins, strict=True)),
            "rotary_dim": (rotation.rotary_dim or spec.head_dim) if rotation else 0,
            "interleaved": rotation.is_interleaved if rotation else False,
        }
        angles = [rotation.angles] if rotation else []
        for cache in (key_cache, value_cache):
            self._specs[cache.get_node().get_friendly_name()] = spec
        inputs = [*rows, *angles, key_cache, self._step_of(*step)]
        return [self._factory.create("PagedAttention", inputs, attributes).output(0)]

    def _step_of(self, past_lens: Any, query_begins: Any, indices: Any, begins: Any) -> Any:
        """The step's whole numbers as one tensor, the same for all layers."""
        from openvino import opset13

        if self._step is None:
            num_sequences = opset13.shape_of(past_lens, "i32").output(0)
            self._step = opset13.concat([num_sequences, past_lens, query_begins, begins, indices], 0).output(0)
        return self._step

    def _unrotated(self, value: Any) -> tuple[Any, _Rotation | None]:
        """What is rotated between Unsqueeze and Squeeze to become `value`, and how; else the value itself."""
        nodes = [value.get_node()]
        while len(nodes) < 3 and nodes[-1].get_input_size():
            nodes.append(nodes[-1].input_value(0).get_node())
        if [node.get_type_name() for node in nodes] != ["Squeeze", "Abs", "Unsqueeze"]:
            return value, None
        rotation = self._rotations.get(nodes[1].get_name())
        return (nodes[2].input_value(0), rotation) if rotation else (value, None)

    def left_rotations(self, model: ov.Model) -> bool:
        """Whether something in the model still awaits a rotation."""
        return any(node.get_name() in self._rotations for node in model.get_ordered_ops())

    def shape_caches(self, model: ov.Model, kv_cache_precision: str) -> None:
        """One cache a layer, `kv_cache.N`: [blocks, KV heads, BLOCK_SIZE, bytes or floats of a token's key and value].

        The order within a block and head is the operator's own; see native/attention/attention.h.
        """
        import openvino as ov

        is_u8 = kv_cache_precision == "u8"
        for parameter in model.get_parameters():
            name = parameter.get_friendly_name()
            if name not in self._specs:
                continue
            if name.startswith("value_cache."):
                model.remove_parameter(parameter)
                continue
            spec = self._specs[name]
            width = 2 * (spec.head_dim + _SCALE_BYTES if is_u8 else spec.head_dim)
            parameter.set_element_type(ov.Type.u8 if is_u8 else ov.Type.f32)
            parameter.set_partial_shape(ov.PartialShape([-1, spec.num_kv_heads, BLOCK_SIZE, width]))
            renamed = name.replace("key_cache.", "kv_cache.")
            parameter.set_friendly_name(renamed)
            parameter.output(0).get_tensor().set_names({renamed})
        model.validate_nodes_and_infer_types()


def _common_source(*parts: Any) -> tuple[list[Any], tuple[int, ...]] | None:
    """The tensor [T, n] that q, k and v are the columns of, and where each begins."""
    split = parts[0].get_node()
    if split.get_type_name() not in ("Split", "VariadicSplit"):
        return None
    if [(part.get_node().get_name(), part.get_index()) for part in parts] != [(split.get_name(), i) for i in range(3)]:
        return None
    widths = [output.get_partial_shape()[1].get_length() for output in split.outputs()]
    return [split.input_value(0)], (0, *itertools.accumulate(widths[:2]))
