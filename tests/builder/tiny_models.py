"""Tiny random models of real architectures, made with transformers, saved as Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

#: Sizes that no two dimensions share, so that a transposed or misplaced weight cannot fit by accident.
LLAMA_SIZES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}


def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights large enough that every part matters; biases and norm scales too, whose defaults (0 and 1) hide bugs."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                std = 1.0 if "embed" in name or "wte" in name or "wpe" in name else parameter.shape[-1] ** -0.5
                parameter.normal_(0, std, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0, 0.3, generator=generator)
            else:
                parameter.uniform_(0.5, 1.5, generator=generator)


def make_model(config: transformers.PretrainedConfig, seed: int = 0) -> Any:
    """A random causal model in float32 with plain ("eager") attention, ready to run."""
    # Falcon's eager attention adds ALiBi twice (it is in the mask already); its sdpa attention once.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention)
    randomize(model, seed)
    return model.eval()


def save_model(config: transformers.PretrainedConfig, folder: Path, seed: int = 0, **options: Any) -> Any:
    """Makes a model and saves it to `folder`; returns the model."""
    model = make_model(config, seed)
    model.save_pretrained(folder, **options)
    return model


def model_logits(model: Any, token_ids: list[int]) -> np.ndarray:
    """[len(token_ids), vocab] of one whole forward pass."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0].numpy()


def model_greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """What greedy decoding appends, by whole forward passes: no cache of transformers is trusted."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(model_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def random_prompt(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((seed, length)).integers(0, vocab_size, length).tolist()
