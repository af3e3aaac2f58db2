"""One or more tiny configs of every decoder family, for the parity tests and the table in the documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from builder.tiny_models import LLAMA_SIZES

MakeConfig = Callable[[], transformers.PretrainedConfig]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 2.0,
    "high_freq_factor": 6.0,
    "original_max_position_embeddings": 64,  # of the eight wavelengths some are kept, blended and stretched
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 2.5, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 16.0, 16.0, 16.0],
    "original_max_position_embeddings": 128,
}


def llama(**changes: Any) -> transformers.PretrainedConfig:
    return transformers.LlamaConfig(**{**LLAMA_SIZES, **changes})


def gemma(kind: Any, **changes: Any) -> transformers.PretrainedConfig:
    return kind(**{**LLAMA_SIZES, "head_dim": 24, **changes})


def gpt2(**changes: Any) -> transformers.PretrainedConfig:
    sizes = {"vocab_size": 131, "n_embd": 96, "n_layer": 2, "n_head": 6, "n_positions": 128}
    return transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=3, **changes)


def _neox(**changes: Any) -> transformers.PretrainedConfig:
    sizes = {key: value for key, value in LLAMA_SIZES.items() if key != "num_key_value_heads"}
    return transformers.GPTNeoXConfig(**{**sizes, "bos_token_id": None, "eos_token_id": 3, **changes})


def _opt(**changes: Any) -> transformers.PretrainedConfig:
    sizes = {"vocab_size": 131, "hidden_size": 96, "ffn_dim": 160, "num_hidden_layers": 2, "num_attention_heads": 6}
    return transformers.OPTConfig(**sizes, max_position_embeddings=128, word_embed_proj_dim=96, **changes)


def _falcon(**changes: Any) -> transformers.PretrainedConfig:
    sizes = {"vocab_size": 131, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8}
    return transformers.FalconConfig(**{**sizes, "bos_token_id": None, "eos_token_id": 3, **changes})


def _bloom(**changes: Any) -> transformers.PretrainedConfig:
    sizes = {"vocab_size": 131, "hidden_size": 96, "n_layer": 2, "n_head": 6}
    return transformers.BloomConfig(**sizes, **changes)


CONFIGS: dict[str, MakeConfig] = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-mha": lambda: llama(num_key_value_heads=6),
    "llama-mqa": lambda: llama(num_key_value_heads=1),
    "llama-head-dim": lambda: llama(head_dim=24),
    "llama-bias": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama3-rope": lambda: llama(rope_parameters=LLAMA3_ROPE),
    "linear-rope": lambda: llama(rope_parameters=LINEAR_ROPE),
    "yarn-rope": lambda: llama(rope_parameters=YARN_ROPE),
    "mistral-window": lambda: transformers.MistralConfig(**LLAMA_SIZES, sliding_window=5),
    "mistral-full": lambda: transformers.MistralConfig(**LLAMA_SIZES, sliding_window=None),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA_SIZES),
    "qwen2-mixed-windows": lambda: transformers.Qwen2Config(
        **LLAMA_SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1
    ),
    "qwen2-window-off": lambda: transformers.Qwen2Config(**LLAMA_SIZES, use_sliding_window=False, sliding_window=4),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA_SIZES, head_dim=24),
    "smollm3": lambda: transformers.SmolLM3Config(**{**LLAMA_SIZES, "num_hidden_layers": 5}),
    "phi3": lambda: transformers.Phi3Config(**LLAMA_SIZES, sliding_window=7),
    "phi3-longrope": lambda: transformers.Phi3Config(
        **LLAMA_SIZES, rope_parameters=LONGROPE, original_max_position_embeddings=128
    ),
    "mixtral": lambda: transformers.MixtralConfig(**LLAMA_SIZES, num_local_experts=5, num_experts_per_tok=2),
    "gemma": lambda: gemma(transformers.GemmaConfig),
    "gemma2": lambda: gemma(transformers.Gemma2Config, sliding_window=5, query_pre_attn_scalar=40),
    "gemma3": lambda: gemma(
        transformers.Gemma3TextConfig, num_hidden_layers=7, sliding_window=5, query_pre_attn_scalar=40
    ),
    "gpt2": gpt2,
    "gpt2-inner": lambda: gpt2(n_inner=160),
    "gpt-neox": _neox,
    "gpt-neox-sequential": lambda: _neox(use_parallel_residual=False, tie_word_embeddings=True),
    "opt": _opt,
    "opt-norm-after": lambda: _opt(do_layer_norm_before=False, enable_bias=False),
    "phi": lambda: transformers.PhiConfig(**LLAMA_SIZES),
    "bloom": _bloom,
    "bloom-8-heads-post-norm": lambda: transformers.BloomConfig(
        vocab_size=131, hidden_size=96, n_layer=2, n_head=8, apply_residual_connection_post_layernorm=True
    ),
    "falcon-7b": _falcon,
    "falcon-40b": lambda: _falcon(new_decoder_architecture=True, num_kv_heads=2),
    "falcon-rw": lambda: _falcon(alibi=True, multi_query=False, parallel_attn=False, bias=True),
}
