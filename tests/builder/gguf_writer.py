"""Writes small GGUF files for tests: any metadata, any tensors, as llama.cpp's converter would lay them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.tensor_mapping import get_tensor_name_map


def write_gguf(
    path: Path,
    metadata: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    architecture: str = "llama",
    quant: gguf.GGMLQuantizationType | None = None,
    exceptions: dict[str, gguf.GGMLQuantizationType] | None = None,
) -> Path:
    """Writes `tensors` (row-major shapes) as they are, or matrices quantised to `quant`, or as `exceptions` say by the
    end of their names. K-quants, which gguf cannot make, become random blocks (`k_quant_blocks`)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, array in tensors.items():
        kind = next((kind for end, kind in (exceptions or {}).items() if name.endswith(end)), quant)
        if kind is not None and array.ndim == 2:
            blocks = k_quant_blocks(kind, *array.shape) if kind in K_QUANTS else gguf.quantize(array, kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


#: By type: byte of the float16 scale, of the float16 scale of minima, the factor between them, and what the weights'
#: standard deviation is at scale 1.
K_QUANTS: dict[gguf.GGMLQuantizationType, tuple[int, int | None, float, float]] = {
    gguf.GGMLQuantizationType.Q4_K: (0, 2, 7.5, 150.0),
    gguf.GGMLQuantizationType.Q5_K: (0, 2, 15.5, 300.0),
    gguf.GGMLQuantizationType.Q6_K: (208, None, 0.0, 1370.0),
}


def k_quant_blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Random codes, scales and minima whose weights have mean 0 and standard deviation columns^-0.5."""
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    at, at_minima, ratio, spread = K_QUANTS[kind]
    raw = np.random.default_rng(rows * columns).integers(0, 256, (rows, columns // size, num_bytes), dtype=np.uint8)
    scale = columns**-0.5 / spread
    raw[:, :, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    if at_minima is not None:
        raw[:, :, at_minima : at_minima + 2] = np.array([scale * ratio], np.float16).view(np.uint8)
    return raw.reshape(rows, -1)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def permute_rows(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of Q and K rows, written from its definition: row 2i of a head is row i, 2i+1 is i + D/2."""
    head_dim = rows.shape[0] // num_heads
    order = [
        head * head_dim + half * head_dim // 2 + index
        for head in range(num_heads)
        for index in range(head_dim // 2)
        for half in range(2)
    ]
    return rows[order]


def llama_metadata(config: Any) -> dict[str, Any]:
    """The keys of a Llama file for a transformers config."""
    return {
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "llama.vocab_size": config.vocab_size,
    }


_LLAMA_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama_tensors(model: Any) -> dict[str, np.ndarray]:
    """A transformers Llama's weights under GGUF names, Q and K rows in GGUF order."""
    config = model.config
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    if not config.tie_word_embeddings:
        tensors["output.weight"] = state["lm_head.weight"]
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for name, stored in _LLAMA_NAMES.items():
            array = state[f"model.layers.{layer}.{name}.weight"]
            array = permute_rows(array, heads[name]) if name in heads else array
            tensors[f"blk.{layer}.{stored}.weight"] = array
    return tensors


def gguf_tensors(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """A transformers model's weights under GGUF names, changed as llama.cpp's converter of that architecture does."""
    config = model.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    tensors = {}
    for name, value in model.state_dict().items():
        array = value.detach().numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "gpt2" and name.endswith((".attn.bias", ".attn.masked_bias")):
            continue
        if architecture == "smollm3" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            array = permute_rows(array, heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if architecture == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = np.ascontiguousarray(array.T)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return tensors


def gguf_metadata(config: Any, architecture: str) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes for a transformers config."""
    facts = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": getattr(config, "num_key_value_heads", None),
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_epsilon", None),
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "rope.freq_base": _global_theta(config),
    }
    return {f"{architecture}.{key}": value for key, value in facts.items() if value is not None}


def _global_theta(config: Any) -> float | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    parameters = parameters.get("full_attention", parameters)
    theta = parameters.get("rope_theta")
    return None if theta is None else float(theta)
