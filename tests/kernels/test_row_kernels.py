"""residual_norm and layernorm_gelu against their references over one table of shapes."""

import pytest
import torch
from trtdecode.kernels.launch import Launcher
from trtdecode.kernels.layernorm_gelu import APPROXIMATIONS, layernorm_gelu, layernorm_gelu_reference
from trtdecode.kernels.residual_norm import residual_norm, residual_norm_reference
from trtdecode.kernels.rows import WIDEST_ROW, row_block

# dtype, atol, rtol: one unit in the last place of values around 4, and the reduction's order in f32 (a GPU's differs).
F32_ATOL = 1e-5 if torch.cuda.is_available() else 2e-6
TOLERANCES = [(torch.float32, F32_ATOL, 1e-5), (torch.float16, 4e-3, 2e-3), (torch.bfloat16, 3.2e-2, 1.6e-2)]
# one value; just below, at and above a power of two; a real model's; more rows than one.
SHAPES = [(1, 1), (2, 31), (2, 32), (3, 33), (2, 576), (1, 4100)]


def inputs(rows: int, width: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """x with strided rows and a mean of 5 (a one-pass variance would cancel), residual, weight, bias."""
    generator = torch.Generator().manual_seed(rows * 10_000 + width)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    x = (draw(rows, width + 16) + 5).to(dtype).to(device)[:, :width]
    residual = draw(rows, width).to(dtype).to(device)
    return x, residual, (1 + 0.1 * draw(width)).to(device), draw(width).to(device)


@pytest.mark.parametrize("centred", [False, True], ids=["rmsnorm", "layernorm"])
@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_residual_norm(
    launcher: Launcher, device: str, rows: int, width: int, dtype: torch.dtype, atol: float, rtol: float, centred: bool
) -> None:
    x, residual, weight, shift = inputs(rows, width, dtype, device)
    bias = shift if centred else None
    expected, expected_residual = residual_norm_reference(x, residual, weight, bias, 1e-5)
    got = residual_norm(launcher, x, residual, weight, bias, 1e-5, torch.full_like(residual, float("nan")))
    torch.testing.assert_close(residual, expected_residual, atol=0, rtol=0)
    torch.testing.assert_close(got, expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize(("dtype", "atol", "rtol"), TOLERANCES)
@pytest.mark.parametrize(("rows", "width"), SHAPES)
def test_layernorm_gelu(
    launcher: Launcher,
    device: str,
    rows: int,
    width: int,
    dtype: torch.dtype,
    atol: float,
    rtol: float,
    approximate: str,
) -> None:
    x, residual, weight, bias = inputs(rows, width, dtype, device)
    expected = layernorm_gelu_reference(x, weight, bias, 1e-5, approximate)
    got = layernorm_gelu(launcher, x, weight, bias, 1e-5, approximate, torch.full_like(residual, float("nan")))
    torch.testing.assert_close(got, expected, atol=atol, rtol=rtol)


def test_a_zero_row_stays_finite(launcher: Launcher, device: str) -> None:
    zeros = torch.zeros(1, 64, device=device)
    weight, bias = torch.ones(64, device=device), torch.full((64,), 3.0, device=device)
    out = torch.empty_like(zeros)
    assert (residual_norm(launcher, zeros, zeros.clone(), weight, None, 1e-6, out) == 0).all()
    assert (residual_norm(launcher, zeros, zeros.clone(), weight, bias, 1e-5, out) == 3).all()


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
def test_gelu_of_huge_values(launcher: Launcher, device: str, approximate: str) -> None:
    """A gain of 1e4: the tanh's exponential must not overflow into NaN."""
    x = torch.arange(64.0, device=device).reshape(1, 64)
    weight, bias = torch.full((64,), 1e4, device=device), torch.zeros(64, device=device)
    expected = layernorm_gelu_reference(x, weight, bias, 1e-5, approximate)
    got = layernorm_gelu(launcher, x, weight, bias, 1e-5, approximate, torch.empty_like(x))
    torch.testing.assert_close(got, expected, atol=1e-2, rtol=1e-5)


def test_a_row_that_is_too_wide_is_refused(launcher: Launcher) -> None:
    x = torch.zeros(1, WIDEST_ROW + 1)
    with pytest.raises(AssertionError, match="rows of 16385 values; the kernel holds 1 to 16384"):
        residual_norm(launcher, x, x.clone(), torch.ones(WIDEST_ROW + 1), None, 1e-6, x.clone())


def test_row_block_covers_every_width() -> None:
    for width in (1, 255, 257, 2048, 2049, 8193, WIDEST_ROW):
        block, warps = row_block(width)
        assert width <= block < 2 * width or block == 1
        assert block <= 32 * 32 * warps, "more than 32 values a thread"
