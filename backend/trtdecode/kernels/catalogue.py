"""Which kernels a model needs, found by running the operators on meta tensors with a launcher that only records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.kernels.kv_write import kv_write
from trtdecode.kernels.launch import Kernel, RecordingLauncher, Variant
from trtdecode.kernels.layernorm_gelu import layernorm_gelu
from trtdecode.kernels.paged_attention import RaggedBatch, SplitWorkspace, paged_attention
from trtdecode.kernels.pages import allocate_pages
from trtdecode.kernels.residual_norm import residual_norm
from trtdecode.manifest import ModelSpec

#: `--dtype` -> the type of activations.
ACTIVATIONS = {"f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelShape:
    """What of a model changes the kernels' code."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    block_size: int = 16
    softcap: float = 0.0

    @classmethod
    def of_spec(cls, spec: ModelSpec, block_size: int = 16, softcap: float = 0.0) -> ModelShape:
        return cls(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.hidden_size, block_size, softcap)


#: What CI compiles: the model of the tests, and the shape most models of 7 to 9 billion parameters have.
SHAPES = {
    "smollm2-135m": ModelShape(num_heads=9, num_kv_heads=3, head_dim=64, hidden_size=576),
    "llama-3.1-8b": ModelShape(num_heads=32, num_kv_heads=8, head_dim=128, hidden_size=4096),
}


def variants_of(shape: ModelShape, dtype: str, kv_precisions: Sequence[str]) -> list[tuple[Kernel, Variant]]:
    """Every kernel that serving `shape` launches, each once.

    Args:
        dtype: of activations, a key of ACTIVATIONS.
        kv_precisions: keys of pages.PAGE_DTYPES.
    """
    recorder = RecordingLauncher()
    for precision in kv_precisions:
        _record_attention(recorder, shape, ACTIVATIONS[dtype], precision)
    _record_norms(recorder, shape, ACTIVATIONS[dtype])
    return list(recorder.variants.values())


def _record_attention(recorder: RecordingLauncher, shape: ModelShape, dtype: torch.dtype, precision: str) -> None:
    spec = AttentionSpec(shape.num_heads, shape.num_kv_heads, shape.head_dim, 1.0, softcap=shape.softcap)
    pages = allocate_pages(precision, 2, shape.num_kv_heads, shape.block_size, shape.head_dim, "meta")
    num_tokens = 4

    def i32(count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int32, device="meta")

    batch = RaggedBatch(i32(2), i32(3), i32(2), i32(3), num_tokens, has_decode=True, has_prefill=True)
    # The three are slices of one merged tensor at run time; what counts is whether a row's stride divides by 16.
    heads = shape.num_heads + 2 * shape.num_kv_heads
    merged = torch.empty((num_tokens, heads * shape.head_dim), dtype=dtype, device="meta")
    query = merged[:, : shape.num_heads * shape.head_dim]
    key = merged[:, : shape.num_kv_heads * shape.head_dim]
    slots = torch.empty(num_tokens, dtype=torch.int64, device="meta")
    kv_write(recorder, key, key, slots, pages)
    for num_splits in (1, 2):
        workspace = SplitWorkspace.allocate(spec, 2, num_splits, "meta")
        output = torch.empty(query.shape, dtype=dtype, device="meta")
        paged_attention(recorder, query, pages, batch, spec, workspace, output)


def _record_norms(recorder: RecordingLauncher, shape: ModelShape, dtype: torch.dtype) -> None:
    x = torch.empty((4, shape.hidden_size), dtype=dtype, device="meta")
    vector = x[0]
    for bias in (None, vector):
        residual_norm(recorder, x, x, vector, bias, 1e-6, x)
    layernorm_gelu(recorder, x, vector, vector, 1e-6, "tanh", x)
