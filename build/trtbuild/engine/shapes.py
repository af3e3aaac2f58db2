"""Types and shapes of the values that cross segments."""

from __future__ import annotations

import onnx_ir as ir
from trtdecode.errors import BuildError
from trtdecode.executor.engine_steps import Dimension, TensorSpec

#: ONNX's types by the names that `TensorSpec` uses.
DTYPE_NAMES: dict[ir.DataType, str] = {
    ir.DataType.FLOAT: "f32",
    ir.DataType.FLOAT16: "f16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.INT8: "i8",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
}


def spec_of(value: ir.Value, dimension: str) -> TensorSpec:
    """Type and shape of a value whose first dimension is the dynamic one.

    Args:
        dimension: the name that the first dimension gets.

    Raises:
        BuildError: type or shape is not known, or another dimension is dynamic as well.
    """
    if value.dtype not in DTYPE_NAMES or value.shape is None or value.shape.rank() == 0:
        raise BuildError(f"value {value.name!r} ({value.dtype}, {value.shape}) crosses segments without a known shape")
    sizes: list[Dimension] = [dimension]
    for size in list(value.shape)[1:]:
        if not isinstance(size, int):
            raise BuildError(
                f"value {value.name!r} has shape {value.shape}; only the first dimension of a value that crosses "
                "segments may be dynamic"
            )
        sizes.append(size)
    return TensorSpec(DTYPE_NAMES[value.dtype], tuple(sizes))
