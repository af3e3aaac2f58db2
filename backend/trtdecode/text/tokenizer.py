"""The tokenizer of a model version: text to ids and back, by `tokenizers`, which only this file imports.

Policy for prompts: special tokens written in raw text are recognised (clients send rendered chats), and the prompt
begins with exactly one BOS where the tokenizer adds one. Chats go through `chat_template.py`, where text from
users can never become a special token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from trtdecode.errors import InvalidRequest, ManifestError
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.detokenizer import Detokenizer
from trtdecode.text.output import TextOutput
from trtdecode.text.pieces import piece_rules
from trtdecode.text.stop_strings import StopStrings

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"  # newer checkpoints keep it out of the configuration


class Tokenizer:
    """Thread-safe: nothing changes after construction but a cache of pieces.

    Args:
        tokenizer_json: text of tokenizer.json.
        config: the object of tokenizer_config.json.
    """

    def __init__(self, tokenizer_json: str, config: dict[str, Any] | None = None) -> None:
        import tokenizers

        self.config = config or {}
        self.json_text = tokenizer_json
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises no narrower type
            raise ManifestError(f"{TOKENIZER_FILE}: not a tokenizer ({error}); import the model again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._rules = piece_rules(json.loads(tokenizer_json).get("decoder"))
        self._pieces: dict[int, bytes] = {}
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_id = self._named_id("eos_token")
        self.adds_bos = self._adds_bos()

    @classmethod
    def from_dir(cls, version_dir: Path) -> Tokenizer:
        """Loads tokenizer.json and, where present, tokenizer_config.json and chat_template.jinja.

        Raises:
            ManifestError: a file is missing or not what its name says.
            UnsupportedError: the decoder cannot stream.
        """
        path = version_dir / TOKENIZER_FILE
        try:
            text = path.read_text("utf-8")
            config_path, template_path = version_dir / CONFIG_FILE, version_dir / TEMPLATE_FILE
            config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
            if template_path.is_file():
                config["chat_template"] = template_path.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ManifestError(f"{path}: not readable ({error}); import the model again") from error
        return cls(text, config)

    @property
    def vocab_size(self) -> int:
        """Ids that have a text, added tokens included; the model's vocabulary may be padded beyond it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def chat_templates(self) -> dict[str, str]:
        """jinja2 sources by name ("default", "tool_use", ...); empty for a model without any."""
        template = self.config.get("chat_template")
        if isinstance(template, list):
            return {entry["name"]: entry["template"] for entry in template}
        return {"default": template} if template else {}

    @property
    def special_token_texts(self) -> dict[str, str]:
        """What templates call bos_token, eos_token, ...: the names in tokenizer_config.json that end in `_token`."""
        texts = {name: _content_of(value) for name, value in self.config.items() if name.endswith("_token")}
        return {name: text for name, text in texts.items() if text is not None}

    def encode(self, text: str, field: str = "text_input") -> list[int]:
        """Ids of a raw prompt; special tokens in the text count as such.

        Where the tokenizer adds BOS the prompt begins with exactly one, also if the text has its own.

        Raises InvalidRequest naming `field` when the text holds half a surrogate pair, which is no character.
        """
        ids = self._encode(text, field, add_special_tokens=self.config.get("add_bos_token") is not False)
        bos = self.bos_token_id
        if self.adds_bos and bos is not None:
            while ids[:1] == [bos]:
                del ids[0]
            ids.insert(0, bos)
        return ids

    def encode_prompt(self, text: str, field: str = "text_input") -> list[int]:
        """`encode`, for a prompt that must have at least one token. Raises InvalidRequest naming `field`."""
        ids = self.encode(text, field)
        if not ids:
            raise InvalidRequest(field, text, "must hold at least one token: this model's tokenizer adds no BOS")
        return ids

    def encode_text(self, text: str, field: str = "text_input") -> list[int]:
        """Ids of a text as it is: nothing added. Raises as `encode` does."""
        return self._encode(text, field, add_special_tokens=False)

    def _encode(self, text: str, field: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer.encode(checked_text(text, field), add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole list: what `output` gives for it, pushed token by token."""
        detokenizer = self._detokenizer(skip_special_tokens, at_text_start=True)
        return "".join(map(detokenizer.push, ids))

    def token_bytes(self, token_id: int) -> bytes:
        """What a token adds inside a text; b"" for an id without one."""
        return self._piece(token_id, False)

    def token_text(self, token_id: int) -> str:
        """A token for people (logprobs); parts of characters show as U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def bad_word_ids(self, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        """Token sequences that spell the words, at the start of a word and inside one (as vLLM does).

        Raises InvalidRequest for a word that has no tokens.
        """
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            variants = [tuple(self.encode_text(prefix + word.lstrip(), "bad_words")) for prefix in ("", " ")]
            if not all(variants):
                raise InvalidRequest("bad_words", word, "must hold at least one token")
            plain, spaced = variants
            found[plain] = None
            if spaced[0] != plain[0] and len(spaced) == len(plain):
                found[spaced] = None
        return tuple(found)

    def output(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        eos_token_ids: Collection[int],
        stops: StopStrings | None,
    ) -> TextOutput:
        """A fresh output state. `stops` is `stop_strings(params)`: made once for all samples of a request."""
        eos_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        return TextOutput(
            self._detokenizer(params.skip_special_tokens, at_text_start=self.special_ids.issuperset(prompt_ids)),
            stops=stops,
            stop_token_ids=eos_ids.union(params.stop_token_ids),
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
        )

    def _detokenizer(self, skip_special_tokens: bool, *, at_text_start: bool) -> Detokenizer:
        return Detokenizer(
            self._piece,
            strip_start=self._rules.strip_start,
            skipped_ids=self.special_ids if skip_special_tokens else frozenset(),
            at_text_start=at_text_start,
        )

    def _piece(self, token_id: int, first: bool) -> bytes:
        if first:
            return self._new_piece(token_id, first=True)
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = self._new_piece(token_id, first=False)
        return piece

    def _new_piece(self, token_id: int, *, first: bool) -> bytes:
        token: str | None = self._tokenizer.id_to_token(token_id)
        return b"" if token is None else self._rules.piece(token, first=first)

    def _adds_bos(self) -> bool:
        """tokenizer_config.json decides where it says so, else what tokenizer.json does to an empty text."""
        if self.bos_token_id is None:
            return False
        said = self.config.get("add_bos_token")
        if said is not None:
            return bool(said)
        return self._tokenizer.encode("").ids[:1] == [self.bos_token_id]

    def _named_id(self, name: str) -> int | None:
        content = _content_of(self.config.get(name))
        token_id: int | None = None if content is None else self._tokenizer.token_to_id(content)
        return token_id


def _content_of(value: Any) -> str | None:
    """A token in tokenizer_config.json: its text, or an object that holds it as `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def checked_text(text: str, field: str) -> str:
    """The text, if UTF-8 can hold it. JSON can write half a surrogate pair, which is no character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(field, text, f"must be valid Unicode: half a surrogate pair at {error.start}") from None
    return text


def stop_strings(params: SamplingParams) -> StopStrings | None:
    """The compiled stop strings of a request, or None."""
    return StopStrings(params.stop) if params.stop else None
