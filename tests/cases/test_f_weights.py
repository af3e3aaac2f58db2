"""CASES group F: what is not said by a loader's own tests (docs/cases.md lists those)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from builder.tiny_models import LLAMA_SIZES, model_logits, random_prompt
from conformance.driver import Driver
from trtbuild.checkpoint import open_checkpoint
from trtbuild.graph.author import author_graph
from trtbuild.quantize import fp8, int4, int8
from trtdecode.executor.torch_executor import TorchExecutor

SQUARE = np.array([[1, 2, 3, 4], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)  # stored [in, out]


def driver_of(folder: Path, precision: str = "f32") -> Driver:
    author_graph(open_checkpoint(folder), folder / f"{precision}.onnx", precision)
    return Driver(TorchExecutor(folder / f"{precision}.onnx", kv_cache_bytes=1 << 20, block_size=4))


def test_c44_a_square_projection_is_not_transposed(tmp_path: Path) -> None:
    """GPT-2 with n_embd 4 whose attention hands [1, 0, 0, 0] to `c_proj`: the residual gains [1, 2, 3, 4].

    Query and key are zero, so attention is the mean of equal values; the value is a bias alone. The embedding is zero,
    the MLP is zero, the final norm's scale is one: the head (identity rows) reads the normalised sum.
    """
    config = transformers.GPT2Config(
        vocab_size=8, n_embd=4, n_layer=1, n_head=1, n_positions=16, tie_word_embeddings=False, eos_token_id=7
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        block = model.transformer.h[0]
        for norm in (block.ln_1, block.ln_2, model.transformer.ln_f):
            norm.weight.fill_(1.0)
        block.attn.c_attn.bias[8] = 1.0  # value = [1, 0, 0, 0]
        block.attn.c_proj.weight.copy_(torch.from_numpy(SQUARE))
        model.lm_head.weight[:4] = torch.eye(4)
    model.save_pretrained(tmp_path)
    y = np.array([1, 2, 3, 4], np.float32)
    expected = (y - y.mean()) / np.sqrt(y.var() + 1e-5)
    wrong = np.array([0.75, -0.25, -0.25, -0.25]) / np.sqrt(0.1875 + 1e-5)
    driver = driver_of(tmp_path)
    logits = driver.prefill(driver.sequence([1, 2, 3]))[:, :4]
    np.testing.assert_allclose(logits, np.tile(expected, (3, 1)), atol=1e-5)
    assert np.abs(logits - wrong).max() > 0.5


def test_c44_neighbour_every_conv1d_survives_int8(tmp_path: Path) -> None:
    """Rows of very different sizes: scales along the wrong axis would cost far more than INT8's own error."""
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=64, eos_token_id=3)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2, generator=generator)
            if name.endswith(("c_proj.weight", "c_fc.weight")):
                parameter.mul_(10.0 ** torch.linspace(-2, 0, parameter.shape[1]))  # by output channel
    model.save_pretrained(tmp_path)
    driver, prompt = driver_of(tmp_path, "int8"), random_prompt(20, 64)
    expected = model_logits(model, prompt)
    got = driver.prefill(driver.sequence(prompt))
    assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()


FORMATS = {
    "int8": (lambda weights: int8.quantize_rows(weights, 16), int8.dequantize_rows),
    "int4": (lambda weights: int4.quantize_groups(weights, 16), int4.dequantize_groups),
    "fp8": (fp8.quantize_rows, fp8.dequantize_rows),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shape", [(4, 32), (8, 64), (16, 16)])
def test_c46_nothing_is_nan_in_any_format(form: str, shape: tuple[int, int]) -> None:
    """Rows of zeros, of 1e-30, of denormals, with a single 1e4; and everything zero."""
    quantize, dequantize = FORMATS[form]
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    weights[0], weights[1], weights[2] = 0.0, 1e-30, 1e-44
    weights[-1, 5] = 1e4
    for matrix in (weights, np.zeros_like(weights)):
        quantized = quantize(matrix)
        back = np.asarray(dequantize(quantized))
        assert np.isfinite(np.asarray(quantized.scales, np.float32)).all() and np.isfinite(back).all()
        assert not back[0].any()


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(6, 2), (8, 1), (4, 4), (6, 3)])
def test_c40_head_counts_agree_with_the_reference(tmp_path: Path, num_heads: int, num_kv_heads: int) -> None:
    """A wrong ratio of heads hides where it happens to be equal: several ratios, against transformers."""
    from builder.tiny_models import save_model

    sizes = {**LLAMA_SIZES, "num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": 16}
    model = save_model(transformers.LlamaConfig(**sizes), tmp_path)
    driver, prompt = driver_of(tmp_path), random_prompt(19, sizes["vocab_size"])
    np.testing.assert_allclose(driver.prefill(driver.sequence(prompt)), model_logits(model, prompt), atol=1e-3)
