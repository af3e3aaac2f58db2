"""Streaming text: joined deltas equal the whole, and no character is ever cut (cases C01 and C03)."""

from __future__ import annotations

import random

import pytest
import tokenizers
from trtdecode.errors import UnsupportedError
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.detokenizer import Detokenizer
from trtdecode.text.pieces import piece_rules
from trtdecode.text.tokenizer import Tokenizer

from .conftest import byte_level_text, byte_level_tokenizer, piece_ids, sentencepiece_tokenizer

CASE_C01 = "ok 🌶 你好 👩‍👩‍👧 ď."


def stream(tokenizer: Tokenizer, ids: list[int], *, prompt: tuple[int, ...] = ()) -> list[str]:
    output = tokenizer.output(SamplingParams(), prompt, (), None)
    return [output.push([token_id])[0] for token_id in ids] + [output.flush()]


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return piece_ids(tokenizer, *(byte_level_text(bytes([byte])) for byte in data))


def test_bytes_of_characters_arrive_one_by_one() -> None:
    tokenizer = byte_level_tokenizer([])
    ids = byte_ids(tokenizer, CASE_C01.encode())
    assert len(ids) > len(CASE_C01)
    deltas = stream(tokenizer, ids)
    assert "".join(deltas) == CASE_C01
    assert all("\ufffd" not in delta for delta in deltas)
    assert deltas[:4] == ["o", "k", " ", ""]


@pytest.mark.parametrize(("num_bytes", "text"), [(1, ""), (2, ""), (3, ""), (4, "🌶")])
def test_half_character_at_the_end_is_dropped(num_bytes: int, text: str) -> None:
    tokenizer = byte_level_tokenizer([])
    ids = byte_ids(tokenizer, "🌶".encode()[:num_bytes])
    assert "".join(stream(tokenizer, ids)) == text
    assert tokenizer.decode(ids) == text


def test_bytes_that_never_become_a_character_become_one_replacement_each() -> None:
    tokenizer = byte_level_tokenizer([])
    assert stream(tokenizer, byte_ids(tokenizer, b"a\xff\xf0\x9fb"))[:-1] == ["a", "\ufffd", "", "", "\ufffdb"]


@pytest.mark.parametrize("chunk", [1, 2, 8])
def test_sentencepiece_keeps_spaces_between_words_for_every_chunk_size(chunk: int) -> None:
    pieces = ["▁Deep", "▁learning", "▁is", "▁a", "▁subset", "▁of", "▁ML"]
    tokenizer = sentencepiece_tokenizer(pieces)
    ids = piece_ids(tokenizer, *pieces)
    output = tokenizer.output(SamplingParams(), (1,), (), None)
    text = "".join(output.push(ids[begin : begin + chunk])[0] for begin in range(0, len(ids), chunk))
    assert text + output.flush() == "Deep learning is a subset of ML" == tokenizer.decode(ids)


def test_a_continuation_keeps_its_leading_space() -> None:
    """Prompt text and output text join to the text of all ids: the strip is for the start of the whole text only."""
    tokenizer = sentencepiece_tokenizer(["▁I", "▁like", "▁tea"])
    prompt, output = piece_ids(tokenizer, "▁I", "▁like"), piece_ids(tokenizer, "▁tea")
    assert "".join(stream(tokenizer, output, prompt=(1, *prompt))) == " tea"
    assert tokenizer.decode(prompt) + " tea" == tokenizer.decode(prompt + output)


def test_byte_fallback_joins_bytes_to_characters() -> None:
    tokenizer = sentencepiece_tokenizer(["▁hot"])
    ids = piece_ids(tokenizer, "▁hot", *(f"<0x{byte:02X}>" for byte in "🌶".encode()))
    assert stream(tokenizer, ids) == ["hot", "", "", "", "🌶", ""]


def test_only_one_leading_space_is_stripped() -> None:
    tokenizer = sentencepiece_tokenizer(["▁▁", "▁a"])
    assert "".join(stream(tokenizer, piece_ids(tokenizer, "▁▁", "▁a"))) == "  a"


def test_metaspace_decoder() -> None:
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer = sentencepiece_tokenizer(["▁a", "▁b"], decoder)
    ids = piece_ids(tokenizer, "▁a", "▁b", "▁a")
    assert "".join(stream(tokenizer, ids)) == "a b a"


def test_wordpiece_decoder_joins_and_cleans() -> None:
    rules = piece_rules({"type": "WordPiece", "prefix": "##", "cleanup": True})
    pieces = [rules.piece(token, first=index == 0) for index, token in enumerate(["un", "##able", "to", ".", "x"])]
    assert b"".join(pieces) == b"unable to. x"


def test_no_decoder_joins_by_spaces() -> None:
    rules = piece_rules(None)
    assert [rules.piece(token, first=first) for token, first in (("a", True), ("b", False))] == [b"a", b" b"]


def test_a_decoder_that_cannot_stream_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="'CTC'"):
        piece_rules({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True})


def test_special_tokens_are_skipped_or_shown_without_breaking_characters() -> None:
    tokenizer = byte_level_tokenizer([], specials=["<|eot|>"])
    half = byte_ids(tokenizer, "é".encode())
    ids = [half[0], 0, half[1]]
    assert tokenizer.decode(ids) == "é"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "\ufffd<|eot|>\ufffd"


def test_unknown_ids_have_no_text() -> None:
    tokenizer = byte_level_tokenizer([])
    assert tokenizer.decode([10**6]) == ""


def test_random_ids_equal_the_librarys_decoding(smollm2: Tokenizer) -> None:
    """Byte-level: any ids at all, characters torn or not, up to the half character that we drop at the end."""
    library = tokenizers.Tokenizer.from_str(smollm2.json_text)
    rng = random.Random(5)
    for length in [1, 2, 3, 20, 200] * 20:
        ids = [rng.randrange(smollm2.vocab_size) for _ in range(length)]
        for skip in (True, False):
            ours, theirs = smollm2.decode(ids, skip_special_tokens=skip), library.decode(ids, skip_special_tokens=skip)
            assert ours == theirs or (theirs == ours + "\ufffd")


@pytest.mark.parametrize("text", ["", " lead", "a  b\n\n c\t", CASE_C01, "e\u0301 \u200d x", "\x00\x01", "<|im_end|>"])
def test_round_trip(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text), skip_special_tokens=False) == text


def test_state_is_bounded() -> None:
    """A token costs the same after a million others: nothing but an unfinished character is kept."""
    detokenizer = Detokenizer(lambda token_id, first: b"\xf0\x9f" if token_id else b"a")
    for token_id in [1, 1, 0, 1] * 1000:
        detokenizer.push(token_id)
    assert len(detokenizer._decoder.getstate()[0]) <= 3
