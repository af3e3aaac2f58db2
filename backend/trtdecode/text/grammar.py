"""Structured output by `llguidance` (the extra `guided`), which only this file imports.

A guide is compiled when the request comes, on the caller's thread; the loop then asks for one mask a step, while the
executor runs. Preemption does not touch it, because the output stays; should output be taken back, it rolls back.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from trtdecode.errors import InvalidRequest, RequestError
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.tokenizer import Tokenizer

#: A model may indent, but a mask that always allows one more blank lets a poor model write blanks for ever.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\r\t]{0,40}"}
_MAX_CACHED_GRAMMARS = 64


class Grammars:
    """Compiles guides for one model. Thread-safe.

    Args:
        tokenizer: the model's.
        vocab_size: the width of its logits, which may be padded beyond the tokenizer's vocabulary.
        eos_token_ids: what may follow a complete text.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiled = functools.lru_cache(_MAX_CACHED_GRAMMARS)(self._compile)

    def guide(self, params: SamplingParams) -> LlguidanceGuide | None:
        """A fresh guide for one sample, or None where the request has none.

        Raises:
            InvalidRequest: the schema, expression or grammar is not valid or uses what llguidance does not support, or
                llguidance is not installed.
        """
        if not params.guided:
            return None
        field, text = _guide_of(params)
        matcher = self._compiled(field, text).deep_copy()
        return LlguidanceGuide(matcher, field, self._vocab_size)

    @functools.cached_property
    def _library_tokenizer(self) -> Any:
        """About a second for a large vocabulary; the first guided request pays for it."""
        import llguidance

        return llguidance.LLTokenizer(
            self._tokenizer.json_text, n_vocab=self._vocab_size, eos_token=self._eos_token_ids
        )

    def _compile(self, field: str, text: str) -> Any:
        try:
            from llguidance import LLMatcher, LLParserLimits
        except ImportError:
            raise InvalidRequest(
                field, text, "is not available on this server: install it with `pip install trtdecode[guided]`"
            ) from None
        try:
            grammar = _grammar_text(field, text)
        except ValueError as error:
            raise InvalidRequest(field, text, f"is not valid: {error}") from error
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._library_tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(field, text, f"is not valid: {_first_line(matcher.get_error())}")
        return matcher


class LlguidanceGuide:
    """`sampling.guide.Guide` over one matcher."""

    def __init__(self, matcher: Any, field: str, vocab_size: int) -> None:
        self.mask = np.zeros((vocab_size + 31) // 32, np.uint32)
        self.is_complete = False
        self.error: RequestError | None = None
        self._matcher = matcher
        self._field = field
        self._consumed: list[int] = []
        self._num_matched = 0  # of those consumed; what follows a complete text does not go to the matcher
        self._is_mask_current = False

    def prepare(self, output_ids: Sequence[int]) -> None:
        """See `sampling.guide.Guide`."""
        num_kept = self._num_common(output_ids)
        if self._is_mask_current and num_kept == len(self._consumed) == len(output_ids):
            return
        if num_kept < self._num_matched:
            self._matcher.rollback(self._num_matched - num_kept)
            self._num_matched = num_kept
        self._consumed[num_kept:] = output_ids[num_kept:]
        new_ids = self._consumed[num_kept:]
        if new_ids and not self._matcher.is_stopped():
            self._matcher.consume_tokens(new_ids)
            self._num_matched += len(new_ids)
        self._fill_mask()

    def _num_common(self, output_ids: Sequence[int]) -> int:
        """Tokens consumed that are still there. Output only grows, as a rule: then one comparison tells."""
        count = len(self._consumed)
        if count <= len(output_ids) and (count == 0 or output_ids[count - 1] == self._consumed[-1]):
            return count
        pairs = zip(self._consumed, output_ids, strict=False)
        return next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(output_ids))

    def _fill_mask(self) -> None:
        self._is_mask_current = True
        if not self._matcher.is_error():
            self.is_complete = self._matcher.is_stopped()
            self._matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        if self._matcher.is_error():
            position = f"output token {len(self._consumed)}"
            self.error = InvalidRequest(
                self._field, position, f"cannot go on: {_first_line(self._matcher.get_error())}"
            )


def _guide_of(params: SamplingParams) -> tuple[str, str]:
    """The field that guides, and its text (choices as a JSON list)."""
    if params.guided_choice:
        return "guided_choice", json.dumps(params.guided_choice)
    for field in ("guided_json", "guided_regex", "guided_grammar"):
        text: str | None = getattr(params, field)
        if text:
            return field, text
    raise AssertionError("params.guided is true without a guide")


def _grammar_text(field: str, text: str) -> str:
    """llguidance's form of a guide. Raises ValueError."""
    from llguidance import LLMatcher, grammar_from

    text.encode("utf-8")  # half a surrogate pair raises here, not in the library
    if field == "guided_json":
        return str(LLMatcher.grammar_from_json_schema(text, defaults=_JSON_OPTIONS))
    kind = {"guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}[field]
    return str(grammar_from(kind, text))


def _first_line(message: str) -> str:
    """The library adds its state and the grammar below."""
    return message.strip().partition("\n")[0][:500]
