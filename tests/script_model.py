"""A model that says any text it is told to (CASES' SCRIPT model), whatever the prompt holds.

A GPT-2 checkpoint whose attention and MLP are zero, whose embedding is one-hot and whose position table names the
token to say next: the answer depends on the prompt's length alone. So one checkpoint holds many scripts, one after the
other, and a prompt of the right length chooses one. The flat model (final norm zero) makes all logits equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chain_model import byte_characters
from safetensors.numpy import save_file

NUM_POSITIONS = 512
BOS, EOS = "<s>", "</s>"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
_HEAD_DIM = 32
#: A script: its tokens, each a text, or raw bytes where a token is less than a character.
Script = Sequence[str | bytes]


@dataclass(frozen=True, slots=True)
class ScriptModel:
    """What a test must know of a written checkpoint."""

    folder: Path
    num_prompt_tokens: dict[str, int]  # script name -> length of the prompt that makes the model say it
    vocab: dict[str | bytes, int]  # token -> id

    def prompt_ids(self, script: str) -> list[int]:
        """A prompt of the right length, as token ids."""
        return [self.vocab[b"x"]] * self.num_prompt_tokens[script]


def write_script_checkpoint(folder: Path, scripts: Mapping[str, Script], *, flat: bool = False) -> ScriptModel:
    """Byte-level tokenizer that adds no BOS and merges nothing: a prompt of n bytes is n tokens."""
    vocab: dict[str | bytes, int] = {bytes([byte]): byte for byte in range(256)}
    vocab[EOS] = len(vocab)
    _add_pieces(vocab, scripts)
    spelled = {EOS if piece == EOS else _spell(piece): index for piece, index in vocab.items()}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        **_EMPTY,
        "added_tokens": [_special(vocab[EOS], EOS)],
        "pre_tokenizer": {**decoder, "add_prefix_space": False},
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": spelled, "merges": []},
    }
    return _write(folder, tokenizer, {"eos_token": EOS}, vocab, scripts, flat)


def write_pieces_checkpoint(folder: Path, scripts: Mapping[str, Script]) -> ScriptModel:
    """A Llama-type tokenizer: "▁" for spaces, byte tokens, a decoder that strips the first space, a BOS before every
    prompt, and a chat template that begins with that BOS itself."""
    names = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab: dict[str | bytes, int] = {bytes([byte]): 3 + byte for byte in range(256)}
    vocab |= {name: index for index, name in enumerate(names[:3])}
    _add_pieces(vocab, scripts)
    names += [piece for piece, index in vocab.items() if index >= len(names) and isinstance(piece, str)]
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    tokenizer = {
        **_EMPTY,
        "added_tokens": [_special(index, names[index]) for index in range(3)],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [vocab[BOS]], "tokens": [BOS]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "Unigram",
            "unk_id": 0,
            "byte_fallback": True,
            "vocab": [[name, -float(index > 258)] for index, name in enumerate(names)],
        },
    }
    config = {"bos_token": BOS, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    return _write(folder, tokenizer, config, vocab, scripts, flat=False)


_EMPTY: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
}


def _add_pieces(vocab: dict[str | bytes, int], scripts: Mapping[str, Script]) -> None:
    for script in scripts.values():
        for piece in map(_token, script):
            vocab.setdefault(piece, len(vocab))


def _token(piece: str | bytes) -> str | bytes:
    """A text of one byte is that byte's token."""
    encoded = piece if isinstance(piece, bytes) else piece.encode()
    return encoded if len(encoded) == 1 else piece


def _write(
    folder: Path,
    tokenizer: dict[str, Any],
    tokenizer_config: dict[str, Any],
    vocab: dict[str | bytes, int],
    scripts: Mapping[str, Script],
    flat: bool,
) -> ScriptModel:
    size = len(vocab)
    size += -size % _HEAD_DIM
    next_ids = np.full(NUM_POSITIONS, vocab[EOS])
    lengths: dict[str, int] = {}
    position = 2  # a prompt of three tokens: BOS, "▁" and one more
    for name, script in scripts.items():
        lengths[name] = position + 1
        for piece in map(_token, script):
            next_ids[position] = vocab[piece]
            position += 1
        position += 1  # the end
    assert position <= NUM_POSITIONS, "the scripts are too long for the position table"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), "utf-8")
    (folder / "config.json").write_text(json.dumps(_config(size, vocab[EOS])), "utf-8")
    save_file(_weights(size, next_ids, flat), folder / "model.safetensors")
    return ScriptModel(folder, lengths, vocab)


def _weights(size: int, next_ids: np.ndarray, flat: bool) -> dict[str, np.ndarray]:
    layer = "transformer.h.0"
    shapes = {"attn.c_attn": (size, 3 * size), "attn.c_proj": (size, size), "mlp.c_fc": (size, 4 * size)}
    shapes["mlp.c_proj"] = (4 * size, size)
    weights = {f"{layer}.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    weights |= {f"{layer}.{name}.bias": np.zeros(shape[1], np.float32) for name, shape in shapes.items()}
    for name in (f"{layer}.ln_1", f"{layer}.ln_2", "transformer.ln_f"):
        weights[f"{name}.weight"] = np.ones(size, np.float32)
        weights[f"{name}.bias"] = np.zeros(size, np.float32)
    if flat:
        weights["transformer.ln_f.weight"] = np.zeros(size, np.float32)
    weights["transformer.wte.weight"] = np.eye(size, dtype=np.float32)
    positions = np.zeros((NUM_POSITIONS, size), np.float32)
    positions[np.arange(NUM_POSITIONS), next_ids] = 10.0
    weights["transformer.wpe.weight"] = positions
    return weights


def _config(size: int, eos: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": size,
        "n_layer": 1,
        "n_head": size // _HEAD_DIM,
        "n_positions": NUM_POSITIONS,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": size,
        "eos_token_id": eos,
        "bos_token_id": eos,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def _special(token_id: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": text, **flags, "special": True}


def _spell(piece: str | bytes) -> str:
    byte = byte_characters()
    return "".join(byte[value] for value in (piece if isinstance(piece, bytes) else piece.encode()))
