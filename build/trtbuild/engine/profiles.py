"""Optimisation profiles over an engine's one dynamic dimension, the number of tokens (or logit rows) of a step.

Two ranges: decode steps are one token a sequence, so few and known to be bounded by max_num_seqs; prefill steps go up
to max_num_batched_tokens. Each profile has its own kernels, tuned for its optimum.
"""

from __future__ import annotations

import onnx_ir as ir
from trtdecode.errors import ConfigError
from trtdecode.executor.engine_steps import TokenProfile

from trtbuild.engine.engine_from_onnx import ShapeRange


def token_profiles(max_num_seqs: int, max_num_batched_tokens: int) -> tuple[TokenProfile, ...]:
    """The decode and prefill profiles; one where every step fits the decode range.

    Args:
        max_num_seqs: sequences in one step.
        max_num_batched_tokens: tokens in one step; no batch has more, by the scheduler's budget.

    Raises:
        ConfigError: a limit below 1, or fewer tokens than sequences.
    """
    if max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs: {max_num_seqs}; must be at least 1")
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens: {max_num_batched_tokens} is less than max_num_seqs {max_num_seqs}; "
            "every sequence needs a token in a decode step, so raise it"
        )
    decode = TokenProfile("decode", 1, min(8, max_num_seqs), max_num_seqs)
    if max_num_batched_tokens == max_num_seqs:
        return (decode,)
    # Chunked prefill fills most steps to the budget, so that is what prefill is tuned for.
    return (decode, TokenProfile("prefill", 1, max_num_batched_tokens, max_num_batched_tokens))


def shape_ranges(graph: ir.Graph, profile: TokenProfile) -> dict[str, ShapeRange]:
    """The range of every dynamic input of a segment."""
    ranges: dict[str, ShapeRange] = {}
    for value in graph.inputs:
        assert value.shape is not None
        if not value.shape.is_static():
            low, best, high = (
                tuple(size if isinstance(size, int) else tokens for size in value.shape)
                for tokens in (profile.min_tokens, profile.opt_tokens, profile.max_tokens)
            )
            ranges[value.name or ""] = (low, best, high)
    return ranges
