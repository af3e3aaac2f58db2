"""How one request wants its tokens chosen. Immutable; validated where it is made (`SamplingParams.from_mapping`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Names and meaning follow vLLM's documentation of its sampling parameters, so that its clients need no change."""

    max_tokens: int | None = None  # None: up to the end of the context
    min_tokens: int = 0
    temperature: float = 1.0  # below 1e-5 the choice is greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
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
        return self.temperature < 1e-5 or self.top_k == 1
