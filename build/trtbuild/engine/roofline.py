"""What a kernel must at least cost: its bytes and operations against a GPU's bandwidth and throughput."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtdecode.errors import ConfigError
from trtdecode.plan.devices import Device, load_devices

from trtbuild.engine.layer_report import DTYPE_BYTES, Kernel, KernelTensor

#: Throughput table's names by TensorRT's; the narrowest type that enters decides which units do the multiplying.
_MATMUL_TYPES = {"FP8": "fp8", "Int8": "int8", "Half": "fp16", "BFloat16": "bf16", "Float": "fp16"}


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Lower bounds of one kernel at one number of tokens."""

    num_bytes: float  # read and written, weights included
    flops: float  # of a matmul, two a multiply-add; 0 for everything else
    seconds: float  # the larger of the two bounds
    is_memory_bound: bool  # which of the two it is


def device_for(sm: int, name: str = "") -> Device:
    """A device of the planner's table: by name, or the first of an SM.

    Raises:
        ConfigError: no such device, listing those there are.
    """
    devices = load_devices()
    if name:
        if name not in devices:
            raise ConfigError(f"--device {name!r}: not in the table; use one of {', '.join(devices)}")
        return devices[name]
    found = next((device for device in devices.values() if device.sm == sm), None)
    if found is None:
        raise ConfigError(f"no device of SM {sm} in the table; name one of {', '.join(devices)} with --device")
    return found


def kernel_cost(kernel: Kernel, num_tokens: int, device: Device) -> KernelCost:
    """The bound of one kernel with its dynamic dimension at `num_tokens`."""
    tensors = (*kernel.inputs, *kernel.constants, *kernel.outputs)
    num_bytes = sum(tensor_bytes(tensor, num_tokens) for tensor in tensors)
    flops = matmul_flops(kernel, num_tokens)
    bytes_seconds = num_bytes / device.bandwidth
    flops_seconds = flops / device.matmul_flops(_matmul_type(kernel)) if flops else 0.0
    return KernelCost(num_bytes, flops, max(bytes_seconds, flops_seconds), bytes_seconds >= flops_seconds)


def tensor_bytes(tensor: KernelTensor, num_tokens: int) -> float:
    """Size of a tensor; every dynamic dimension counts as `num_tokens`."""
    return num_elements(tensor, num_tokens) * DTYPE_BYTES.get(tensor.dtype, 4)


def num_elements(tensor: KernelTensor, num_tokens: int) -> int:
    return math.prod(num_tokens if size < 0 else size for size in tensor.shape)


def matmul_flops(kernel: Kernel, num_tokens: int) -> float:
    """Operations of a matmul kernel, from the shapes of what it reads and writes; 0 for other kernels.

    With A[M, K], B[K, N] and C[M, N], |A| |B| / |C| is K squared. A and B are the two largest operands; horizontally
    merged matmuls are counted as one over their joint output, which is what they compute.
    """
    if not kernel.is_matmul or not kernel.outputs:
        return 0.0
    operands = sorted((num_elements(one, num_tokens) for one in (*kernel.inputs, *kernel.constants)), reverse=True)
    output = sum(num_elements(one, num_tokens) for one in kernel.outputs)
    depth = _contraction(kernel, num_tokens)
    if depth is None:
        depth = math.sqrt(operands[0] * operands[1] / output) if len(operands) > 1 else 0.0
    return 2.0 * output * depth


def _contraction(kernel: Kernel, num_tokens: int) -> float | None:
    """The width of the matmul's stored operand that is not the output's: elements of the weight / output channels."""
    width = sum(one.shape[-1] for one in kernel.outputs if one.shape)
    weights = [one for one in (*kernel.constants, *kernel.inputs) if len(one.shape) == 2 and min(one.shape) > 1]
    for weight in sorted(weights, key=lambda one: num_elements(one, num_tokens), reverse=True):
        if width > 0 and width in weight.shape:
            return num_elements(weight, num_tokens) / width
    return None


def _matmul_type(kernel: Kernel) -> str:
    """INT8 and FP8 units work where both operands have the type; weight-only matmuls multiply in the float type."""
    inputs = {tensor.dtype for tensor in kernel.inputs}
    for dtype in ("FP8", "Int8"):
        if inputs & {dtype} and dtype in {tensor.dtype for tensor in kernel.constants}:
            return _MATMUL_TYPES[dtype]
    floats = [tensor.dtype for tensor in kernel.inputs if tensor.dtype in ("Half", "BFloat16")]
    return _MATMUL_TYPES[floats[0]] if floats else "fp16"
