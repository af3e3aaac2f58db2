"""How one request wants its tokens chosen. Immutable; validated where it is made (`SamplingParams.from_mapping`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: At or below this temperature the choice is greedy. The softmax of two logits that differ by 0.01 is already
#: 22,026 to 1 here, so that sampling could only add noise.
GREEDY_TEMPERATURE = 1e-3


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and meaning follow vLLM's documentation of its sampling parameters, so that its clients need no change."""

    max_tokens: int | None = None  # None: up to the end of the context
    min_tokens: int = 0
    temperature: float = 1.0  # at or below GREEDY_TEMPERATURE the choice is greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 0: only the most likely token
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # prompt and output
    presence_penalty: float = 0.0  # output only
    frequency_penalty: float = 0.0  # output only
    seed: int | None = None  # None: drawn once at admission
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias)
    logprobs: int | None = None  # None: none; k: the chosen token's and the k best
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    priority: int = 0  # lower runs first
    guided_json: str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        """The most likely token is taken (the lowest id wins a tie) and no random number is drawn."""
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0

    @property
    def guided(self) -> bool:
        """A grammar limits the tokens."""
        return bool(self.guided_json or self.guided_regex or self.guided_grammar or self.guided_choice)

    @property
    def penalized(self) -> bool:
        """Tokens already seen change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @classmethod
    def from_mapping(
        cls, mapping: Mapping[str, Any], *, spec_vocab_size: int, defaults: SamplingParams | None = None
    ) -> SamplingParams:
        """Reads what a client sent: JSON values, or the Python values of tensors, by vLLM's names and ours.

        Args:
            mapping: field -> value; None means "not given".
            spec_vocab_size: token ids must be below it.
            defaults: what fields not given take (default: this class's defaults).

        Raises:
            InvalidRequest: naming the field, the value and the limit; an unknown key names the nearest known one.
        """
        from trtdecode.sampling.parse import parse_params

        return parse_params(mapping, vocab_size=spec_vocab_size, defaults=defaults or cls())
