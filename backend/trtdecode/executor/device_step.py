"""A step's inputs on the device: one fixed buffer, filled in pinned host memory and sent as one copy.

Every array has its own place in the buffer, the same for every step and every captured graph:

    input_ids | positions | slots | logit_indices | context_lens | query_begins | block_begins | block_indices ...

so a graph captured over the first n rows of each array can be replayed for any batch that is padded to n rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtdecode.executor.base import Batch

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.kernels.paged_attention import RaggedBatch

_ALIGNMENT = 256  # bytes; kernels load whole 16-byte words


@dataclass(frozen=True)
class StepLimits:
    """The largest step. Rows are sequences."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_context_len: int

    def max_table_entries(self, block_size: int) -> int:
        """Block table entries of a step; sequences that share a prefix list its blocks each."""
        return self.max_num_seqs * -(-self.max_context_len // block_size)


@dataclass(frozen=True)
class DeviceStep:
    """One step's inputs, as views of the buffer."""

    input_ids: torch.Tensor  # i64 [T]
    positions: torch.Tensor  # i64 [T]
    slots: torch.Tensor  # i64 [T] block * block_size + offset, where each token's K and V go
    logit_indices: torch.Tensor  # i64 [S]
    ragged: RaggedBatch

    @property
    def num_tokens(self) -> int:
        return int(self.input_ids.shape[0])

    @property
    def num_rows(self) -> int:
        """S: rows that need logits."""
        return int(self.logit_indices.shape[0])


class StepBuffer:
    """The buffer, on both sides. `stage` may be called again once the stream has passed the copy."""

    def __init__(self, device: Device, limits: StepLimits, block_size: int) -> None:
        import torch

        self._device = device
        self._limits = limits
        self._block_size = block_size
        tokens, rows = limits.max_num_batched_tokens, limits.max_num_seqs
        layout = {
            "input_ids": (np.int64, tokens),
            "positions": (np.int64, tokens),
            "slots": (np.int64, tokens),
            "logit_indices": (np.int64, tokens),
            "context_lens": (np.int32, rows),
            "query_begins": (np.int32, rows + 1),
            "block_begins": (np.int32, rows + 1),
            "block_indices": (np.int32, limits.max_table_entries(block_size)),
        }
        places, size = {}, 0
        for name, (dtype, count) in layout.items():
            num_bytes = count * np.dtype(dtype).itemsize
            places[name] = (size, num_bytes)
            size += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._table_begin = places["block_indices"][0]
        self._pinned = device.allocate_pinned((size,), torch.uint8)
        self._on_device = device.allocate((size,), torch.uint8)
        bytes_view = self._pinned.numpy()
        self.host: dict[str, npt.NDArray[Any]] = {
            name: bytes_view[begin : begin + num_bytes].view(layout[name][0])
            for name, (begin, num_bytes) in places.items()
        }
        types = {np.int64: torch.int64, np.int32: torch.int32}
        self._views = {
            name: self._on_device[begin : begin + num_bytes].view(types[layout[name][0]])
            for name, (begin, num_bytes) in places.items()
        }

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """The whole device arrays that an engine may read directly, by the graph's names for them."""
        return {name: self._views[name] for name in ("input_ids", "positions", "logit_indices")}

    def stage(self, batch: Batch, num_rows: int = 0) -> DeviceStep:
        """Fills the host side and sends it.

        Args:
            num_rows: for a decode batch, how many rows to pad it to; 0 does not pad.
        """
        self._check(batch)
        self._fill(batch)
        padding = max(0, num_rows - batch.num_sequences)
        if padding:
            self._pad(batch, padding)
        self._send(len(batch.block_indices))
        lengths = np.diff(batch.query_begins)
        return self.view(
            batch.num_tokens + padding,
            batch.num_sequences + padding,
            len(batch.logit_indices) + padding,
            has_decode=bool((lengths == 1).any()) or padding > 0,
            has_prefill=bool((lengths > 1).any()),
        )

    def stage_padding(self, num_rows: int) -> DeviceStep:
        """A decode step of padding rows alone: what is captured, and the warm-up before it."""
        empty32, empty64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        zero = np.zeros(1, np.int32)
        return self.stage(Batch(empty64, empty64, empty32, zero, empty32, zero, 0, empty64), num_rows)

    def view(
        self, num_tokens: int, num_sequences: int, num_rows: int, *, has_decode: bool, has_prefill: bool
    ) -> DeviceStep:
        """The device side's first rows, whatever they hold."""
        from trtdecode.kernels.paged_attention import RaggedBatch

        views = self._views
        return DeviceStep(
            input_ids=views["input_ids"][:num_tokens],
            positions=views["positions"][:num_tokens],
            slots=views["slots"][:num_tokens],
            logit_indices=views["logit_indices"][:num_rows],
            ragged=RaggedBatch(
                context_lens=views["context_lens"][:num_sequences],
                query_begins=views["query_begins"][: num_sequences + 1],
                block_indices=views["block_indices"],
                block_begins=views["block_begins"][: num_sequences + 1],
                num_tokens=num_tokens,
                has_decode=has_decode,
                has_prefill=has_prefill,
            ),
        )

    def _check(self, batch: Batch) -> None:
        limits = self._limits
        for what, value, limit in (
            ("sequences", batch.num_sequences, limits.max_num_seqs),
            ("tokens", batch.num_tokens, limits.max_num_batched_tokens),
            ("block table entries", len(batch.block_indices), len(self.host["block_indices"])),
        ):
            assert value <= limit, f"a batch of {value} {what}; the executor was made for {limit}"

    def _fill(self, batch: Batch) -> None:
        num_tokens, num_sequences = batch.num_tokens, batch.num_sequences
        lengths = np.diff(batch.query_begins)
        sequence = np.repeat(np.arange(num_sequences), lengths)
        position = batch.past_lens[sequence] + np.arange(num_tokens) - batch.query_begins[:-1][sequence]
        block = batch.block_indices[batch.block_begins[:-1][sequence] + position // self._block_size]
        host = self.host
        host["input_ids"][:num_tokens] = batch.input_ids
        host["positions"][:num_tokens] = batch.positions
        host["slots"][:num_tokens] = block.astype(np.int64) * self._block_size + position % self._block_size
        host["logit_indices"][: len(batch.logit_indices)] = batch.logit_indices
        host["context_lens"][:num_sequences] = batch.past_lens + lengths
        host["query_begins"][: num_sequences + 1] = batch.query_begins
        host["block_begins"][: num_sequences + 1] = batch.block_begins
        host["block_indices"][: len(batch.block_indices)] = batch.block_indices

    def _pad(self, batch: Batch, padding: int) -> None:
        """Rows of token 0 with context length 0, an empty block table and the null block's first slot."""
        begin = batch.num_sequences
        assert batch.num_tokens == len(batch.logit_indices) == begin, "only a decode batch can be padded"
        end = begin + padding
        host = self.host
        for name in ("input_ids", "positions", "slots", "context_lens"):
            host[name][begin:end] = 0
        host["logit_indices"][begin:end] = np.arange(begin, end)
        host["query_begins"][begin + 1 : end + 1] = np.arange(begin + 1, end + 1)
        host["block_begins"][begin + 1 : end + 1] = len(batch.block_indices)

    def _send(self, num_table_entries: int) -> None:
        used = self._table_begin + 4 * num_table_entries
        self._device.copy(self._on_device[:used], self._pinned[:used])
