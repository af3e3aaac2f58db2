"""A sampler over `FakeExecutor`'s hashes, and the solo reference: the same choice from the tokens alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from simulation.fake_executor import history_hash
from trtdecode.executor.base import BatchResult
from trtdecode.protocols import SampleResult
from trtdecode.request import FinishReason, Request, TokenLogprob


def choose(history: int, seed: int, sample_index: int, position: int, vocab_size: int) -> int:
    """The next token: a pure function of what was attended to and of the random key."""
    return (
        (history ^ (seed * 0x9E3779B1) ^ (sample_index * 0x85EBCA77) ^ (position * 0xC2B2AE3D))
        % 0xFFFFFFFB
        % vocab_size
    )


class FakeSampler:
    """Implements `protocols.Sampler`."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def needs_logits(self, request: Request) -> bool:
        return False

    def prepare(self, requests: Sequence[Request]) -> None:
        pass

    def sample(self, result: BatchResult, requests: Sequence[Request]) -> SampleResult:
        assert result.argmax is not None
        hashes = result.argmax.tolist()
        token_ids = [
            choose(history, request.seed, request.sample_index, request.num_tokens, self._vocab_size)
            for history, request in zip(hashes, requests, strict=False)
        ]
        return SampleResult(token_ids, [None] * len(token_ids))

    def prompt_logprobs(
        self, logits: npt.NDArray[np.float32], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        raise NotImplementedError


def solo(request: Request, vocab_size: int, eos: int, window: int) -> tuple[list[int], FinishReason]:
    """What the request generates alone, computed from its tokens without blocks, batches or a loop."""
    tokens = list(request.prompt_ids)
    buffer = np.zeros(request.max_total_tokens, np.int32)
    buffer[: len(tokens)] = tokens
    while len(tokens) < request.max_total_tokens:
        end = len(tokens)
        history = history_hash(buffer[max(0, end - window) if window else 0 : end])
        buffer[end] = token = choose(history, request.seed, request.sample_index, end, vocab_size)
        tokens.append(token)
        if token == eos and not request.params.ignore_eos:
            return tokens[request.num_prompt_tokens :], FinishReason.STOP
    return tokens[request.num_prompt_tokens :], FinishReason.LENGTH
