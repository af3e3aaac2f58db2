"""Paged attention's bandwidth in decode: bytes of K and V read a second, by context length and KV precision."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from cuda_machine import Timer, copy_bandwidth, cuda_seconds, l2_bytes
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.cuda_device import Device, TorchCudaDevice
from trtdecode.executor.device_pages import KernelAttention, PagePool
from trtdecode.executor.device_step import DeviceStep
from trtdecode.kernels.paged_attention import RaggedBatch
from trtdecode.kernels.pages import page_bytes

CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768)
#: Llama 3.1 8B's attention.
SPEC = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
NUM_SEQUENCES = 8


def on_cuda() -> dict[str, Any]:
    """All precisions that this GPU has."""
    device = TorchCudaDevice("cuda:0")
    precisions = ["f16", "int8"] + (["fp8"] if device.sm >= 89 else [])
    rows = measure(
        device, SPEC, CONTEXTS, precisions, num_sequences=NUM_SEQUENCES, timer=cuda_seconds, cold_bytes=4 * l2_bytes()
    )
    ceiling = copy_bandwidth()
    for row in rows:
        row["share_of_copy_bandwidth"] = round(row["bytes_per_second"] / ceiling, 3)
    return {"num_sequences": NUM_SEQUENCES, "attention": str(SPEC), "rows": rows}


def measure(
    device: Device,
    spec: AttentionSpec,
    contexts: Sequence[int],
    precisions: Sequence[str],
    *,
    num_sequences: int,
    timer: Timer,
    cold_bytes: int,
) -> list[dict[str, Any]]:
    """One row a (precision, context). Calls cycle through enough distinct blocks that none finds its data in cache.

    Args:
        cold_bytes: how much other data is read between two reads of the same.
    """
    rows = []
    for precision in precisions:
        block_size = 16
        block_bytes = page_bytes(precision, spec.num_kv_heads, block_size, spec.head_dim)
        for context in contexts:
            blocks_each = -(-context // block_size)
            call_bytes = num_sequences * blocks_each * block_bytes
            num_sets = max(1, -(-cold_bytes // call_bytes))
            pool = PagePool(
                device,
                {"attention": spec},
                precision=precision,
                num_bytes=(num_sets * num_sequences * blocks_each + 1) * block_bytes,
            )
            attention = KernelAttention(device, {"attention": spec}, max_num_seqs=num_sequences)
            attention.use(pool)
            work = _Calls(device, attention, spec, context, num_sequences, num_sets)
            seconds = device.run(functools.partial(timer, work, max(10, 2 * num_sets)))
            rows.append(
                {
                    "kv_precision": precision,
                    "context": context,
                    "microseconds": round(seconds * 1e6, 1),
                    "bytes": call_bytes,
                    "bytes_per_second": round(call_bytes / seconds),
                }
            )
            del pool, attention, work
    return rows


class _Calls:
    """One decode step's attention of one layer; each call takes the next set of blocks."""

    def __init__(
        self, device: Device, attention: KernelAttention, spec: AttentionSpec, context: int, sequences: int, sets: int
    ) -> None:
        where = device.torch_device
        blocks_each = -(-context // 16)
        tables = 1 + torch.arange(sets * sequences * blocks_each, dtype=torch.int32).reshape(sets, -1)
        begins = torch.arange(sequences + 1, dtype=torch.int32)
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        dtype = torch.float16
        self._attention = attention
        self._inputs = [torch.randn(sequences, size).to(dtype).to(where) for size in (width, kv_width, kv_width)]
        self._output = torch.empty_like(self._inputs[0])
        self._next = 0
        rows = torch.arange(sequences, device=where)
        lens = torch.full((sequences,), context, dtype=torch.int32, device=where)
        self._steps = []
        for table in tables:
            ragged = RaggedBatch(
                lens,
                begins.to(where),
                table.to(where),
                (begins * blocks_each).to(where),
                sequences,
                has_decode=True,
                has_prefill=False,
            )
            # The new token goes to the last slot of each sequence's last block.
            slots = (table.reshape(sequences, -1)[:, -1].long() * 16 + (context - 1) % 16).to(where)
            self._steps.append(DeviceStep(rows, rows, slots, rows, ragged))

    def __call__(self) -> None:
        step = self._steps[self._next]
        self._next = (self._next + 1) % len(self._steps)
        query, key, value = self._inputs
        self._attention("attention", step, query, key, value, self._output)
