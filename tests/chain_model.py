"""A model whose answers are known in advance: after each token comes one certain other token.

A Llama checkpoint whose attention and MLP are zero, whose embedding is one-hot and whose head is a permutation-like
table. It looks at the last token only, so it shows what the server does with text, never whether attention is right.

    any byte        -> "one two three four five one two ..." (for ever)
    "!"             -> "ABCDE", then EOS (five tokens)
    "."             -> EOS at once (no token)
    "~"             -> a pepper in four byte tokens, then EOS
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

WORDS = ("one", " two", " three", " four", " five")
LETTERS = ("A", "B", "C", "D", "E")  # byte tokens themselves
PEPPER = "🌶".encode()
EOS = "<|end|>"
HEAD_DIM = 32


def cycle_text(num_tokens: int) -> str:
    """What `num_tokens` greedy tokens after an ordinary prompt are."""
    return "".join(WORDS[index % len(WORDS)] for index in range(num_tokens))


def write_chain_checkpoint(folder: Path, *, max_context_len: int = 4096) -> Path:
    """Writes config.json, model.safetensors, tokenizer.json and tokenizer_config.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    vocab = tokenizer["model"]["vocab"]
    size = len(vocab) + 1
    size += -size % 32  # rows that no text has, as real models do
    eos = len(vocab)
    tokenizer["added_tokens"] = [_special(eos, EOS)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS}), "utf-8")
    (folder / "config.json").write_text(json.dumps(_config(size, eos, max_context_len)), "utf-8")
    save_file(_weights(size, _successors(vocab, eos, size)), folder / "model.safetensors")
    return folder


def _successors(vocab: dict[str, int], eos: int, size: int) -> list[int]:
    """next[i] is the token after token i."""
    byte = byte_characters()
    following = [vocab[_spell(WORDS[0])]] * size
    for word, after in zip(WORDS, WORDS[1:] + WORDS[:1], strict=True):
        following[vocab[_spell(word)]] = vocab[_spell(after)]
    chains: list[list[int]] = [
        [vocab[byte[ord(character)]] for character in "!" + "".join(LETTERS)],
        [vocab[byte[ord(".")]]],
        [vocab[byte[value]] for value in b"~" + PEPPER],
    ]
    for chain in chains:
        for token, after in zip(chain, [*chain[1:], eos], strict=True):
            following[token] = after
    return following


def _weights(size: int, following: list[int]) -> dict[str, np.ndarray]:
    layer = "model.layers.0"
    zeros = {f"{layer}.self_attn.{name}_proj.weight": (2 * HEAD_DIM, size) for name in ("q", "k", "v")}
    zeros[f"{layer}.self_attn.o_proj.weight"] = (size, 2 * HEAD_DIM)
    zeros |= {f"{layer}.mlp.{name}_proj.weight": (64, size) for name in ("gate", "up")}
    zeros[f"{layer}.mlp.down_proj.weight"] = (size, 64)
    weights = {name: np.zeros(shape, np.float32) for name, shape in zeros.items()}
    norms = (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "model.norm")
    weights |= {f"{name}.weight": np.ones(size, np.float32) for name in norms}
    weights["model.embed_tokens.weight"] = np.eye(size, dtype=np.float32)
    head = np.zeros((size, size), np.float32)
    head[following, np.arange(size)] = 1.0  # logit of following[i] when the last token is i
    weights["lm_head.weight"] = head
    return weights


def _config(size: int, eos: int, max_context_len: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": size,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": max_context_len,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": size,
        "tie_word_embeddings": False,
        "eos_token_id": eos,
        "torch_dtype": "float32",
    }


def _tokenizer() -> dict[str, object]:
    """Byte-level BPE: the 256 bytes, and merges that build the words."""
    vocab = {character: index for index, character in enumerate(byte_characters().values())}
    merges: list[str] = []
    for word in WORDS:
        spelled = _spell(word)
        for end in range(1, len(spelled)):
            if spelled[: end + 1] not in vocab:
                merges.append(f"{spelled[:end]} {spelled[end]}")
                vocab[spelled[: end + 1]] = len(vocab)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _special(token_id: int, text: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def byte_characters() -> dict[int, str]:
    """Byte -> the printable character that stands for it in byte-level BPE (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def _spell(text: str) -> str:
    byte = byte_characters()
    return "".join(byte[value] for value in text.encode())
