"""Writes a step's keys and values into their pages, quantising on the way where the pages are int8 or fp8.

Memory bound and tiny: 2 * T * kv_heads * head_dim values are read and written once. One program does one (token,
head), so any head count runs the same code.
"""

from __future__ import annotations

import torch

from trtdecode.kernels.language import jit, tl
from trtdecode.kernels.launch import Kernel, Launcher, next_power_of_2
from trtdecode.kernels.pages import KvPages, quantise_reference


def kv_write_reference(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, pages: KvPages) -> None:
    """The same in torch, one token at a time; arguments as `kv_write`."""
    for token, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        block, offset = divmod(slot, pages.block_size)
        for source, page, scales in (
            (key[token], pages.key, pages.key_scale),
            (value[token], pages.value, pages.value_scale),
        ):
            rows = source.reshape(pages.num_kv_heads, pages.head_dim)
            if scales is None:
                page[block, :, offset] = rows.to(page.dtype)
            else:
                page[block, :, offset], scales[block, :, offset] = quantise_reference(rows, pages.quantisation)


@jit
def _quantise(values, QUANTISATION: tl.constexpr):
    """One row: codes and scale, as pages.quantise_reference."""
    limit = 127.0 if QUANTISATION == "int8" else 448.0
    scale = tl.max(tl.abs(values), axis=0) / limit
    usable = scale > 1e-30  # pages.SMALLEST_SCALE
    inverse = tl.where(usable, 1.0 / tl.where(usable, scale, 1.0), 0.0)
    scaled = tl.minimum(tl.maximum(values * inverse, -limit), limit)
    codes = tl.floor(scaled + 0.5).to(tl.int8) if QUANTISATION == "int8" else scaled.to(tl.float8e4nv)
    return codes, scale


@jit(do_not_specialize=["num_kv_heads"])
def _kv_write_kernel(
    key,
    value,
    slots,
    key_pages,
    value_pages,
    key_scales,
    value_scales,
    num_kv_heads,
    key_row_stride,
    value_row_stride,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DIM_PAD: tl.constexpr,
    QUANTISATION: tl.constexpr,
):
    token = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    # One number addresses (block, head, offset) in scales, and the row of head_dim values in pages.
    page_row = ((slot // BLOCK_SIZE) * num_kv_heads + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    dim = tl.arange(0, DIM_PAD)
    mask = dim < HEAD_DIM
    wide_token = token.to(tl.int64)
    new_key = tl.load(key + wide_token * key_row_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    new_value = tl.load(value + wide_token * value_row_stride + head * HEAD_DIM + dim, mask=mask, other=0.0)
    target = page_row * HEAD_DIM + dim
    if QUANTISATION == "none":
        tl.store(key_pages + target, new_key.to(key_pages.dtype.element_ty), mask=mask)
        tl.store(value_pages + target, new_value.to(value_pages.dtype.element_ty), mask=mask)
    else:
        key_codes, key_scale = _quantise(new_key.to(tl.float32), QUANTISATION)
        value_codes, value_scale = _quantise(new_value.to(tl.float32), QUANTISATION)
        tl.store(key_pages + target, key_codes, mask=mask)
        tl.store(value_pages + target, value_codes, mask=mask)
        tl.store(key_scales + page_row, key_scale)
        tl.store(value_scales + page_row, value_scale)


KV_WRITE = Kernel("kv_write", _kv_write_kernel, num_warps=1, num_stages=1)


def kv_write(launcher: Launcher, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, pages: KvPages) -> None:
    """Stores `key` and `value` at `slots` of `pages`, in place.

    Args:
        key, value: [T, num_kv_heads * head_dim]; rows may be slices of one merged QKV output.
        slots: i64 [T], block * block_size + offset; a negative slot stores nothing.
        pages: one layer's pages. Two tokens of one call must not share a slot, except in the null block.
    """
    num_tokens, width = key.shape
    assert width == pages.num_kv_heads * pages.head_dim, f"key rows hold {width} values, pages {tuple(pages.key.shape)}"
    assert value.shape == key.shape and slots.shape == (num_tokens,) and slots.dtype == torch.int64
    assert key.stride(1) == 1 and value.stride(1) == 1, "a row's values must be contiguous"
    quantised = pages.quantisation != "none"
    launcher(
        KV_WRITE,
        (num_tokens, pages.num_kv_heads, 1),
        (
            key,
            value,
            slots,
            pages.key,
            pages.value,
            # Unquantised pages have no scales; the pointer is then never used.
            pages.key_scale if quantised else pages.key,
            pages.value_scale if quantised else pages.value,
            pages.num_kv_heads,
            key.stride(0),
            value.stride(0),
        ),
        {
            "HEAD_DIM": pages.head_dim,
            "BLOCK_SIZE": pages.block_size,
            "DIM_PAD": next_power_of_2(pages.head_dim),
            "QUANTISATION": pages.quantisation,
        },
    )
