"""GGUF vocabularies as tokenizer.json: equal ids to transformers' conversion, except where that misses the training."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from builder.gguf_writer import write_gguf
from builder.sample_lines import sample_lines
from tokenizers import pre_tokenizers
from trtbuild.checkpoint.gguf_file import GgufFile
from trtbuild.checkpoint.gguf_tokenizer import tokenizer_files
from trtbuild.checkpoint.pre_tokenizers import BYTE_LEVEL_SPLITS
from trtdecode.errors import CheckpointError

NUM_LINES = 10_000

Encode = Callable[[list[str]], list[list[int]]]


def built(path: Path) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Our tokenizer and its config for a GGUF file."""
    files = tokenizer_files(path, GgufFile(path).metadata)
    return tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode()), json.loads(files["tokenizer_config.json"])


def encode(tokenizer: tokenizers.Tokenizer, lines: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(lines)]


def reference(path: Path) -> tokenizers.Tokenizer:
    """Transformers' conversion of the same file."""
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]:
    return built(smollm2_gguf)[0], reference(smollm2_gguf)


def test_smollm2_ids_equal_the_trained_split(smollm2: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]) -> None:
    """Transformers' conversion does not know "smollm" and leaves the digit split out; with it, every line is equal."""
    ours, theirs = smollm2
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    lines = sample_lines(NUM_LINES)
    assert encode(ours, lines) == encode(theirs, lines)


def test_smollm2_ids_equal_transformers_but_for_spaces_before_digits(smollm2_gguf: Path) -> None:
    lines = [line for line in sample_lines(NUM_LINES) if not re.search(r"\s\s\d|\s[½²٣]", line)]
    assert len(lines) > 0.7 * NUM_LINES
    assert encode(built(smollm2_gguf)[0], lines) == encode(reference(smollm2_gguf), lines)


def test_smollm2_text_survives_the_round_trip(smollm2: tuple[tokenizers.Tokenizer, tokenizers.Tokenizer]) -> None:
    lines = sample_lines(500)
    assert [smollm2[0].decode(ids, skip_special_tokens=False) for ids in encode(smollm2[0], lines)] == lines


def test_smollm2_config(smollm2_gguf: Path) -> None:
    tokenizer, config = built(smollm2_gguf)
    assert tokenizer.encode("hi <|im_end|> x").ids[1:3] == [216, 2]
    assert tokenizer.get_added_tokens_decoder()[2].special
    assert (config["bos_token"], config["eos_token"], config["add_bos_token"]) == ("<|im_start|>", "<|im_end|>", False)
    assert "<|im_start|>" in config["chat_template"]


# -- byte-level vocabularies ----------------------------------------------------------------------------------------


def byte_level_metadata(kind: str) -> dict[str, Any]:
    """A byte-level BPE vocabulary trained on the sample lines, as GGUF keys."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(sample_lines(1000), trainer)
    model = json.loads(trained.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = [*vocab, "<|endoftext|>", "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(vocab) + [3, 4],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.eos_token_id": len(vocab),
    }


@pytest.mark.parametrize("kind", ["gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_byte_level_kinds_equal_transformers(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "v.gguf", byte_level_metadata(kind), {"x": np.zeros(1, np.float32)})
    lines = [*sample_lines(2000), "a <think> b<|endoftext|>"]
    assert encode(built(path)[0], lines) == encode(reference(path), lines)


def test_user_defined_tokens_are_added_but_not_special(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", byte_level_metadata("gpt-2"), {"x": np.zeros(1, np.float32)})
    tokenizer = built(path)[0]
    added = {token.content: token.special for token in tokenizer.get_added_tokens_decoder().values()}
    assert added == {"<|endoftext|>": True, "<think>": False}
    assert tokenizer.decode(tokenizer.encode("a <think> b<|endoftext|>").ids) == "a <think> b"


def test_unknown_pre_tokenizer_lists_the_known(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", byte_level_metadata("unheard-of"), {"x": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"pre-tokenizer 'unheard-of' is not known; known: .*smollm"):
        built(path)


@pytest.mark.parametrize("kind", sorted(BYTE_LEVEL_SPLITS))
def test_every_known_kind_is_a_valid_tokenizer(tmp_path: Path, kind: str) -> None:
    path = write_gguf(tmp_path / "v.gguf", byte_level_metadata(kind), {"x": np.zeros(1, np.float32)})
    text = "It's 2024,   3.14\n\nnaïve Ünïcode 中文 🙂"
    tokenizer = built(path)[0]
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


# -- SentencePiece --------------------------------------------------------------------------------------------------


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece BPE vocabulary with byte fallback: scores fall with the order of the merges."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1500, show_progress=False)
    trained.train_from_iterator(sample_lines(1000), trainer)
    model = json.loads(trained.to_str())["model"]
    merged = ["".join(merge) for merge in model["merges"]]
    letters = [token for token in sorted(model["vocab"], key=model["vocab"].__getitem__) if len(token) == 1]
    pieces = list(dict.fromkeys(merged)) + letters
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def test_sentencepiece_equals_transformers(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", sentencepiece_metadata(), {"x": np.zeros(1, np.float32)})
    # Transformers prepends no space to a line that has one; SentencePiece and llama.cpp always do (next test).
    lines = [line for line in sample_lines(2000) if line and not line.startswith(" ")]
    ours, theirs = encode(built(path)[0], lines), encode(reference(path), lines)
    assert [ids[1:] if ids[:1] == [1] else ids for ids in theirs] == [ids[1:] for ids in ours]
    assert all(ids[0] == 1 for ids in ours)


def test_sentencepiece_always_prepends_a_space(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", sentencepiece_metadata(), {"x": np.zeros(1, np.float32)})
    assert built(path)[0].encode("  return").tokens[1:3] == ["\u2581", "\u2581"]


def test_gemma_merges_in_the_order_of_its_tokens(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.add_space_prefix": False})
    metadata["tokenizer.ggml.scores"] = [0.0] * len(metadata["tokenizer.ggml.tokens"])
    path = write_gguf(tmp_path / "v.gguf", metadata, {"x": np.zeros(1, np.float32)}, architecture="gemma3")
    lines = sample_lines(2000)
    assert encode(built(path)[0], lines) == encode(reference(path), lines)


def test_sentencepiece_bytes_and_spaces_survive(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "v.gguf", sentencepiece_metadata(), {"x": np.zeros(1, np.float32)})
    tokenizer = built(path)[0]
    text = "𒀀 is not in the vocabulary,  nor two\tspaces"
    ids = tokenizer.encode(text).ids
    assert {3 + byte for byte in "𒀀".encode()} <= set(ids)
    assert tokenizer.decode(ids) == text


def test_bos_and_eos_follow_the_files_flags(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_eos_token": True}
    path = write_gguf(tmp_path / "v.gguf", sentencepiece_metadata(**flags), {"x": np.zeros(1, np.float32)})
    ids = built(path)[0].encode("the").ids
    assert (ids[0] != 1, ids[-1]) == (True, 2)


# -- wrong vocabularies ---------------------------------------------------------------------------------------------


def test_unknown_tokenizer_kind(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.model": "rwkv"})
    path = write_gguf(tmp_path / "v.gguf", metadata, {"x": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"tokenizer kind 'rwkv' is not known; known in GGUF: gpt2, llama"):
        built(path)


def test_special_id_out_of_range(tmp_path: Path) -> None:
    metadata = sentencepiece_metadata(**{"tokenizer.ggml.eos_token_id": 999_999})
    path = write_gguf(tmp_path / "v.gguf", metadata, {"x": np.zeros(1, np.float32)})
    with pytest.raises(CheckpointError, match=r"eos_token_id is 999999, but there are \d+ tokens"):
        built(path)
