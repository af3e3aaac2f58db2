"""The C++ sampler (`native/`), and whether it is there. The only user of the module `_native`."""

from __future__ import annotations

import functools
import importlib
import logging
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtdecode.request import Request, TokenLogprob
from trtdecode.sampling.rows import Logits, NumpyRows, RowSampler
from trtdecode.sampling.stages import min_p_limit
from trtdecode.sampling.state import SamplerState

_log = logging.getLogger(__name__)
_MAX_THREADS = 4  # rows are short; more threads only wait for memory


class NativeRows:
    """Rows in parallel, one pass each. Equal to `NumpyRows` token for token.

    Args:
        num_threads: the calling thread included; 0: as many as there are processors, at most 4.
        kernels: one of `kernel_names()`; empty: the first.

    Raises:
        ImportError: the module was not built.
        ValueError: no such kernels on this CPU.
    """

    name = "native"

    def __init__(self, num_threads: int = 0, kernels: str = "") -> None:
        self._native: Any = importlib.import_module("trtdecode.sampling._native")
        self._sampler = self._native.NativeSampler(num_threads or min(_num_processors(), _MAX_THREADS), kernels)

    def choose(self, logits: Logits, requests: Sequence[Request], states: Sequence[SamplerState]) -> list[int]:
        tasks = [self._task(request, state) for request, state in zip(requests, states, strict=True)]
        positions = np.fromiter((request.num_tokens for request in requests), np.int64, len(requests))
        rows = np.arange(len(requests), dtype=np.int32)
        chosen: list[int] = self._sampler.choose(np.ascontiguousarray(logits), rows, tasks, positions).tolist()
        return chosen

    def logprobs(
        self, logits: Logits, rows: Sequence[int], token_ids: Sequence[int], num_top: int
    ) -> list[TokenLogprob]:
        chosen, ranks, top_ids, top = self._sampler.logprobs(
            np.ascontiguousarray(logits), np.asarray(rows, np.int32), np.asarray(token_ids, np.int32), num_top
        )
        pairs = [
            tuple((token, logprob) for token, logprob in zip(ids, values, strict=True) if token >= 0)
            for ids, values in zip(top_ids.tolist(), top.tolist(), strict=True)
        ]
        return [
            TokenLogprob(token, logprob, rank, best)
            for token, logprob, rank, best in zip(token_ids, chosen.tolist(), ranks.tolist(), pairs, strict=True)
        ]

    def _task(self, request: Request, state: SamplerState) -> Any:
        if state.native_task is None:
            state.native_task = self._new_task(request, state)
        if not state.is_plain:
            edits = state.edits(request)
            state.native_task.set_edits(edits.banned_ids, edits.mask, edits.seen_ids, edits.seen_counts)
        return state.native_task

    def _new_task(self, request: Request, state: SamplerState) -> Any:
        params = request.params
        task = self._native.RowTask(
            greedy=params.greedy,
            temperature=params.temperature,
            least=float(min_p_limit(params)) if params.min_p > 0.0 else -math.inf,
            top_k=params.top_k,
            top_p=params.top_p,
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            seed=request.seed,
            sample_index=request.sample_index,
        )
        if params.logit_bias:
            task.set_bias(state.bias_ids, state.bias_values)
        return task


def kernel_names() -> list[str]:
    """Instruction sets that the native rows are compiled for and this CPU has, fastest first; empty: not built."""
    try:
        names: list[str] = importlib.import_module("trtdecode.sampling._native").kernel_names()
    except ImportError:
        return []
    return names


def row_sampler(num_threads: int = 0) -> RowSampler:
    """The native sampler, or numpy's where the module was not built, which is logged once a process."""
    try:
        return NativeRows(num_threads)
    except ImportError as error:
        _say_missing(str(error))
        return NumpyRows()


@functools.cache
def _say_missing(reason: str) -> None:
    _log.warning(
        "the native sampler is not built (%s); sampling runs in numpy: same tokens, more time a step. "
        "Install a C++17 compiler and reinstall trtdecode",
        reason,
    )


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
