"""Pieces from Triton -> whole samples, OpenAI's log-probabilities and usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from trtdecode.gateway.triton import Piece


@dataclass(slots=True)
class Sample:
    """One finished sample."""

    text: str = ""
    finish_reason: str = "stop"
    num_tokens: int = 0
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Answer:
    """All samples of one prompt."""

    samples: list[Sample]
    num_prompt_tokens: int = 0
    prompt_logprobs: list[dict[str, Any] | None] | None = None  # one entry a token, where they were asked for

    def add(self, piece: Piece) -> None:
        """Appends what one response brought."""
        self.num_prompt_tokens = piece.num_input_tokens or self.num_prompt_tokens
        self.prompt_logprobs = piece.prompt_logprobs or self.prompt_logprobs
        for index, sample in enumerate(self.samples):
            sample.text += piece.texts[index]
            sample.num_tokens += piece.num_output_tokens[index]
            sample.logprobs += piece.logprobs[index] or []
            sample.finish_reason = piece.finish_reasons[index] or sample.finish_reason


async def collect(pieces: AsyncIterator[Piece], num_samples: int) -> Answer:
    """Reads a generation to its end."""
    answer = Answer([Sample() for _ in range(num_samples)])
    async for piece in pieces:
        answer.add(piece)
    return answer


def usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object; the prompt counts once however many samples it has."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def chat_logprobs(positions: list[dict[str, Any]], num_top: int) -> dict[str, Any]:
    """vLLM's form (token id -> entry, the chosen token first) as the chat end point's `logprobs`."""
    content = []
    for position in positions:
        entries = list(position.values())
        best = sorted(entries, key=lambda entry: entry["rank"])[:num_top]
        content.append({**_token(entries[0]), "top_logprobs": [_token(entry) for entry in best]})
    return {"content": content, "refusal": None}


def completion_logprobs(positions: list[dict[str, Any]], num_top: int, text_offset: int) -> dict[str, Any]:
    """vLLM's form as the completion end point's `logprobs`; offsets count characters from `text_offset`."""
    tokens, values, top, offsets = [], [], [], []
    for position in positions:
        entries = list(position.values())
        tokens.append(entries[0]["decoded_token"])
        values.append(entries[0]["logprob"])
        best = sorted(entries, key=lambda entry: entry["rank"])[:num_top]
        top.append({entry["decoded_token"]: entry["logprob"] for entry in best})
        offsets.append(text_offset)
        text_offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": top, "text_offset": offsets}


def echoed_logprobs(
    prompt: str, prompt_positions: list[dict[str, Any] | None], positions: list[dict[str, Any]], num_top: int
) -> dict[str, Any]:
    """`completion_logprobs` of an echoed prompt and what follows it. Nothing predicts the prompt's first token, so it
    has no value, and its text is what the other tokens leave of the prompt."""
    known = [entry for entry in prompt_positions if entry is not None]
    num_others = sum(len(next(iter(entry.values()))["decoded_token"]) for entry in known)
    first = prompt[: max(0, len(prompt) - num_others)]
    rest = completion_logprobs(known + positions, num_top, len(first))
    head: dict[str, Any] = {"tokens": first, "token_logprobs": None, "top_logprobs": None, "text_offset": 0}
    return {name: [head[name], *values] for name, values in rest.items()}


def _token(entry: dict[str, Any]) -> dict[str, Any]:
    text = entry["decoded_token"]
    return {"token": text, "logprob": entry["logprob"], "bytes": list(text.encode("utf-8"))}
