"""Writes tiny GPTQ checkpoints for tests, as GPTQ's own tools lay them out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
import transformers
from builder.tiny_models import LLAMA_SIZES, make_model

GROUP = 32


def pack(codes: np.ndarray, axis: int) -> np.ndarray:
    """4-bit codes low bits first into int32 words."""
    moved = np.moveaxis(codes.astype(np.uint32), axis, -1)
    words = moved.reshape(*moved.shape[:-1], -1, 8)
    packed = sum(words[..., place] << np.uint32(4 * place) for place in range(8))
    return np.ascontiguousarray(np.moveaxis(packed.view(np.int32), -1, axis))


def gptq_layer(weight: np.ndarray, *, symmetric: bool, order: np.ndarray | None) -> dict[str, np.ndarray]:
    """Round to nearest in groups of 32, as GPTQ stores it."""
    num_in = weight.shape[1]
    groups = np.empty(num_in, np.int32)
    groups[np.arange(num_in) if order is None else order] = np.arange(num_in) // GROUP
    by_group = np.stack([weight[:, groups == group] for group in range(num_in // GROUP)], axis=1)  # [out, groups, 32]
    low, high = by_group.min(2), by_group.max(2)
    if symmetric:
        scales = (np.maximum(high, -low) / 7).astype(np.float16)
        zeros = np.full(scales.shape, 8)
    else:
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 1, 15).astype(int)
    wide_scales, wide_zeros = scales[:, groups].astype(np.float32), zeros[:, groups]
    codes = np.clip(np.rint(weight / wide_scales) + wide_zeros, 0, 15)
    return {
        "qweight": pack(codes.T, 0),
        "qzeros": pack(zeros.T - 1, 1),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": groups,
    }


def gptq_folder(folder: Path, *, symmetric: bool, act_order: bool) -> Path:
    """A tiny Llama with every projection in GPTQ's format."""
    model = make_model(transformers.LlamaConfig(**LLAMA_SIZES))
    random = np.random.default_rng(0)
    orders = {size: random.permutation(size) for size in (96, 160)}
    tensors: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if name.endswith("_proj.weight"):
            order = orders[value.shape[1]] if act_order else None
            layer = gptq_layer(value.numpy(), symmetric=symmetric, order=order)
            tensors |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in layer.items()}
        else:
            tensors[name] = value.numpy()
    config = model.config.to_dict()
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": symmetric}
    config["architectures"] = ["LlamaForCausalLM"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, default=str))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder
