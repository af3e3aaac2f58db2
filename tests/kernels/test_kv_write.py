"""kv_write against its reference: exact for plain pages and int8; fp8 exact in the interpreter."""

import pytest
import torch
from trtdecode.kernels.kv_write import kv_write, kv_write_reference
from trtdecode.kernels.launch import Launcher
from trtdecode.kernels.pages import (
    PAGE_DTYPES,
    QUANTISED_LIMITS,
    KvPages,
    allocate_pages,
    dequantise,
    page_bytes,
)


def poisoned_pages(precision: str, num_blocks: int, heads: int, block: int, dim: int, device: str) -> KvPages:
    """Pages full of a value that no test writes, so that a write to a wrong place shows."""
    pages = allocate_pages(precision, num_blocks, heads, block, dim, device)
    for tensor in (pages.key, pages.value, pages.key_scale, pages.value_scale):
        if tensor is not None:
            tensor.copy_(torch.full(tensor.shape, 77.0).to(tensor.dtype))
    return pages


def assert_same_pages(got: KvPages, want: KvPages, codes_off_by: float = 0.0) -> None:
    for name in ("key", "value", "key_scale", "value_scale"):
        left, right = getattr(got, name), getattr(want, name)
        if left is not None:
            atol, rtol = (0.0, 1e-6) if "scale" in name else (codes_off_by, 0.0)
            torch.testing.assert_close(left.float(), right.float(), atol=atol, rtol=rtol, msg=f"{name} differs")


# precision, input dtype; tolerance of a stored code: exact on the CPU (a GPU's reciprocal may move a code by one).
PRECISIONS = [
    ("f32", torch.float32),
    ("f16", torch.float16),
    ("bf16", torch.bfloat16),
    ("int8", torch.float16),
    ("int8", torch.bfloat16),
    ("fp8", torch.float16),
]
# heads, block, head_dim: powers of two; an odd head count; head_dim that is no power of two; one-slot blocks.
SHAPES = [(2, 16, 64), (3, 32, 20), (1, 1, 8), (8, 8, 96)]


@pytest.mark.parametrize(("precision", "dtype"), PRECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_matches_reference(
    launcher: Launcher, device: str, precision: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    heads, block, dim = shape
    generator = torch.Generator().manual_seed(7)
    got = poisoned_pages(precision, 5, heads, block, dim, device)
    want = poisoned_pages(precision, 5, heads, block, dim, device)
    slots = torch.randperm(5 * block, generator=generator)[:5].to(device)
    slots[2] = -1  # a token that is not to be stored
    num_tokens = len(slots)
    # K and V as slices of one merged QKV output: rows are strided.
    merged = torch.randn(num_tokens, 3 * heads * dim, generator=generator).to(dtype).to(device)
    key, value = merged[:, heads * dim : 2 * heads * dim], merged[:, 2 * heads * dim :]
    kv_write(launcher, key, value, slots, got)
    kv_write_reference(key, value, slots, want)
    assert_same_pages(got, want, codes_off_by=0.0 if device == "cpu" else 1.0)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_rows_that_break_scales(launcher: Launcher, device: str, precision: str) -> None:
    """All zero, subnormal, one huge value among small ones: no NaN, exact zeros, saturation at the limit."""
    pages = poisoned_pages(precision, 1, 1, 4, 8, device)
    rows = torch.zeros(4, 8)
    rows[1] = 1e-38
    rows[2, 3] = 1e4
    rows[2, 4] = -1e4
    rows[3] = torch.arange(8) - 3.5
    kv_write(launcher, rows.to(device), rows.to(device), torch.arange(4, device=device), pages)
    assert pages.key_scale is not None
    stored = dequantise(pages.key, pages.key_scale)[0, 0].cpu()
    assert torch.isfinite(stored).all()
    assert stored[0].tolist() == [0.0] * 8
    assert stored[1].abs().max() <= 1e-38
    assert stored[2].tolist() == pytest.approx([0, 0, 0, 1e4, -1e4, 0, 0, 0])
    # Half a step of int8; E4M3 has 3 mantissa bits, so half of 2^-3 of the value.
    step = 3.5 / 127 / 2 if precision == "int8" else 4.0 / 16
    assert (stored[3] - rows[3]).abs().max() <= step * 1.0001


def test_padding_rows_share_the_null_block(launcher: Launcher, device: str) -> None:
    pages = poisoned_pages("f16", 3, 2, 4, 16, device)
    data = torch.randn(3, 32).half().to(device)
    slots = torch.tensor([5, 0, 0], device=device)  # one real token, two padding rows
    kv_write(launcher, data, data, slots, pages)
    assert (pages.key[2] == 77).all(), "a padding row wrote into an ordinary block"
    torch.testing.assert_close(pages.key[1, :, 1].flatten(), data[0])


def test_page_bytes_counts_scales() -> None:
    assert page_bytes("f16", num_kv_heads=3, block_size=16, head_dim=64) == 2 * 3 * 16 * 64 * 2
    assert page_bytes("int8", num_kv_heads=3, block_size=16, head_dim=64) == 2 * 3 * 16 * (64 + 4)
    for precision in PAGE_DTYPES:
        pages = allocate_pages(precision, 2, 3, 16, 64, "cpu")
        tensors = [t for t in (pages.key, pages.value, pages.key_scale, pages.value_scale) if t is not None]
        assert sum(t.nbytes for t in tensors) == 2 * page_bytes(precision, 3, 16, 64)
        assert (pages.key_scale is not None) == (precision in QUANTISED_LIMITS)
