"""Calibration: streams text through the reference executor and collects statistics of what enters each matmul."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from trtdecode.errors import BuildError
from trtdecode.executor.base import Batch
from trtdecode.executor.onnx_graph import attention_specs, read_graph

from trtbuild.quantize.linears import find_linears
from trtbuild.quantize.statistics import InputStatistics

if TYPE_CHECKING:
    import torch

BLOCK_SIZE = 16
TOKENS_PER_STEP = 512
TEXTS_PER_STEP = 64
BLOCKS_PER_STEP = TOKENS_PER_STEP // BLOCK_SIZE + TEXTS_PER_STEP  # each text may leave one block half empty
Progress = Callable[[int, int], None]  # (texts done, texts in all)


def shipped_texts(name: str = "calibration.txt") -> tuple[str, ...]:
    """The texts of one of our own files ("calibration.txt", "evaluation.txt"): paragraphs between blank lines."""
    return texts_of(resources.files("trtbuild.quantize").joinpath("data", name).read_text("utf-8"))


def texts_of(content: str) -> tuple[str, ...]:
    """Splits a file's content at blank lines."""
    return tuple(piece.strip() for piece in content.replace("\r\n", "\n").split("\n\n") if piece.strip())


def input_widths(graph: ir.Graph) -> dict[str, int]:
    """The values that enter a matmul with a stored weight, and their widths."""
    return {linear.input.name or "": linear.num_in for linear in find_linears(graph)}


def calibrate_decoder(
    graph_path: Path,
    texts: Sequence[Sequence[int]],
    widths: Mapping[str, int],
    *,
    with_hessians: bool = False,
    progress: Progress = lambda done, total: None,
) -> dict[str, InputStatistics]:
    """Runs every text as a prompt and returns statistics for the values in `widths`.

    Args:
        graph_path: the float32 decoder.
        texts: token ids; longer ones than `TOKENS_PER_STEP` are cut there.
        with_hessians: also sum X^T X of every value (GPTQ): sum of width^2 times four bytes of memory.

    Raises:
        BuildError: no text has a token, or a value of `widths` never came by.
    """
    from trtdecode.executor.torch_executor import TorchExecutor

    statistics = {name: InputStatistics(name, width, with_hessian=with_hessians) for name, width in widths.items()}

    def observe(name: str, value: torch.Tensor) -> None:
        if name in statistics:
            statistics[name].add(value.float().cpu().numpy())

    executor = TorchExecutor(graph_path, kv_cache_bytes=pool_bytes(graph_path), block_size=BLOCK_SIZE)
    executor.observer = observe
    done = 0
    try:
        for group in group_texts(texts):
            executor.execute(prompt_batch(group, BLOCK_SIZE, every_row=False))
            done += len(group)
            progress(done, len(texts))
    finally:
        executor.close()
    missing = [name for name, one in statistics.items() if one.num_rows == 0]
    if missing:
        raise BuildError(f"calibration: nothing was seen of {missing[0]!r}; give at least one text with a token")
    return statistics


def prompt_batch(prompts: Sequence[Sequence[int]], block_size: int, *, every_row: bool) -> Batch:
    """One step that computes whole prompts, each in blocks of its own.

    Args:
        every_row: ask for the logits of every token, not only of each prompt's last.
    """
    lengths = np.array([len(prompt) for prompt in prompts])
    blocks = -(-lengths // block_size)
    ends = np.cumsum(lengths)
    return Batch(
        input_ids=np.concatenate([np.asarray(prompt, np.int64) for prompt in prompts]),
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        past_lens=np.zeros(len(prompts), np.int32),
        query_begins=np.concatenate([[0], ends]).astype(np.int32),
        block_indices=np.arange(blocks.sum(), dtype=np.int32),
        block_begins=np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32),
        max_context_len=int(lengths.max()),
        logit_indices=np.arange(ends[-1], dtype=np.int64) if every_row else (ends - 1).astype(np.int64),
    )


def group_texts(texts: Iterable[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Texts in order, as many in a step as fit."""
    group: list[Sequence[int]] = []
    room = TOKENS_PER_STEP
    for text in texts:
        ids = text[:TOKENS_PER_STEP]
        if not ids:
            continue
        if len(ids) > room or len(group) == TEXTS_PER_STEP:
            yield group
            group, room = [], TOKENS_PER_STEP
        group.append(ids)
        room -= len(ids)
    if group:
        yield group


def pool_bytes(graph_path: Path) -> int:
    """Bytes of the float32 KV blocks that one step can need."""
    specs = attention_specs(read_graph(graph_path)).values()
    return BLOCKS_PER_STEP * sum(2 * spec.num_kv_heads * spec.head_dim * BLOCK_SIZE * 4 for spec in specs)
