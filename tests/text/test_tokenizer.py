"""Prompts to ids: one BOS (cases C09 and C33), bad words, and what a broken folder says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trtdecode.errors import InvalidRequest, ManifestError
from trtdecode.text.tokenizer import Tokenizer

from .conftest import byte_level_tokenizer, piece_ids, sentencepiece_tokenizer


def test_raw_text_gets_one_bos_also_when_it_spells_one() -> None:
    tokenizer = sentencepiece_tokenizer(["▁hi"])
    hi = piece_ids(tokenizer, "▁hi")
    assert tokenizer.encode("hi") == [1, *hi]
    assert tokenizer.encode("<s>hi") == [1, *hi]
    assert tokenizer.encode("<s><s>hi") == [1, *hi]


def test_empty_prompt_is_bos_where_one_is_added() -> None:
    assert sentencepiece_tokenizer([]).encode_prompt("") == [1]


def test_empty_prompt_without_bos_is_the_callers_error() -> None:
    with pytest.raises(InvalidRequest, match=r"^text_input: got ''; must hold at least one token"):
        byte_level_tokenizer([]).encode_prompt("")


@pytest.mark.parametrize(("said", "ids"), [(True, [1]), (False, [])])
def test_configuration_decides_about_bos(said: bool, ids: list[int]) -> None:
    """Checkpoints exist whose tokenizer.json and tokenizer_config.json disagree; the latter is what people edit."""
    assert sentencepiece_tokenizer([], add_bos_token=said).encode("") == ids


def test_bos_is_kept_where_the_text_alone_says_so() -> None:
    tokenizer = byte_level_tokenizer([], specials=["<s>"], bos_token="<s>", add_bos_token=False)
    assert tokenizer.encode("<s>") == [0]
    assert tokenizer.encode("<s><s>") == [0, 0]


def test_special_tokens_may_be_objects() -> None:
    tokenizer = byte_level_tokenizer([], specials=["<s>", "</s>"], bos_token={"content": "<s>"}, eos_token="</s>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.special_token_texts == {"bos_token": "<s>", "eos_token": "</s>"}


def test_half_a_surrogate_pair_is_the_callers_error() -> None:
    r"""JSON's "\ud83c" is one; no tokenizer can take it."""
    tokenizer = byte_level_tokenizer([])
    with pytest.raises(InvalidRequest, match=r"^prompt: got 'ab\\ud83c'; must be valid Unicode: half a .* at 2"):
        tokenizer.encode_prompt("ab\ud83c", "prompt")
    with pytest.raises(InvalidRequest, match=r"^bad_words: "):
        tokenizer.bad_word_ids(["\udfff"])


def test_nul_reaches_the_tokens() -> None:
    tokenizer = byte_level_tokenizer([])
    assert len(tokenizer.encode("ab\0")) == len(tokenizer.encode("ab")) + 1


def test_token_text_for_people() -> None:
    tokenizer = byte_level_tokenizer([" the"])
    assert tokenizer.token_text(256) == " the"
    assert tokenizer.token_bytes(0xF0) == b"\xf0"
    assert tokenizer.token_text(0xF0) == "\ufffd"


def test_bad_words_at_the_start_of_a_word_and_inside(smollm2: Tokenizer) -> None:
    (plain, spaced) = smollm2.bad_word_ids(["cat"])
    assert smollm2.decode(plain) == "cat"
    assert smollm2.decode(spaced) == " cat"


def test_vocabulary_size_counts_added_tokens() -> None:
    assert byte_level_tokenizer(["ab"], specials=["<s>"]).vocab_size == 258


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 3}', "\ud800"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, "utf-8", errors="surrogatepass")
    with pytest.raises(ManifestError, match=r"tokenizer\.json: not .*import the model again"):
        Tokenizer.from_dir(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"tokenizer\.json: not readable"):
        Tokenizer.from_dir(tmp_path)


def test_template_file_wins_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_tokenizer([]).json_text)
    config: dict[str, Any] = {"chat_template": "old"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.from_dir(tmp_path).chat_templates == {"default": "old"}
    (tmp_path / "chat_template.jinja").write_text("new")
    assert Tokenizer.from_dir(tmp_path).chat_templates == {"default": "new"}


def test_truncation_in_the_file_is_ignored() -> None:
    data = json.loads(byte_level_tokenizer([]).json_text)
    data["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert len(Tokenizer(json.dumps(data)).encode("abcdef")) == 6
