"""Which part of an axis a rank holds: tensor parallelism as the graph builder sees it.

Megatron's split (https://arxiv.org/abs/1909.08053): a layer's first matmul holds some rows of its weight (heads of
attention, inner units of the MLP), its second the same columns. The second gives a part of a sum: AllReduce adds the
ranks' parts, and a bias is added once, after that. Norms, embedding and head are whole on every rank.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from trtdecode.errors import UnsupportedError

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Share:
    """A part of an axis of `full` entries, as half-open ranges in the order in which they are stored."""

    full: int
    ranges: Ranges

    @classmethod
    def whole(cls, full: int) -> Share:
        return cls(full, ((0, full),))

    @classmethod
    def joined(cls, *shares: Share) -> Share:
        """Shares of axes that lie one behind the other: Q, K and V in one matrix."""
        begins = itertools.accumulate((share.full for share in shares), initial=0)
        ranges = [
            (begin + first, begin + last)
            for begin, share in zip(begins, shares, strict=False)
            for first, last in share.ranges
        ]
        return cls(sum(share.full for share in shares), tuple(ranges))

    @property
    def size(self) -> int:
        return sum(end - begin for begin, end in self.ranges)

    @property
    def is_whole(self) -> bool:
        return self.size == self.full

    def times(self, width: int) -> Share:
        """The same part where every entry is `width` wide: heads to rows."""
        return Share(self.full * width, tuple((begin * width, end * width) for begin, end in self.ranges))


#: The length of an axis: a number where the rank holds all of it.
Size = int | Share


def share_of(size: Size) -> Share:
    return Share.whole(size) if isinstance(size, int) else size


def even_share(what: str, full: int, rank: int, num_ranks: int) -> Share:
    """The `rank`-th of `num_ranks` equal parts.

    Raises:
        UnsupportedError: they would not be equal.
    """
    if full % num_ranks:
        raise UnsupportedError(
            f"tensor_parallel_size {num_ranks}: the model's {full} {what} do not divide by it; "
            f"use one of {', '.join(str(size) for size in range(1, full + 1) if full % size == 0 and size <= 64)}"
        )
    size = full // num_ranks
    return Share(full, ((rank * size, (rank + 1) * size),))


def kv_head_share(num_kv_heads: int, rank: int, num_ranks: int) -> Share:
    """A rank's KV heads: an equal part, or one head that neighbouring ranks share where there are fewer than ranks.

    Raises:
        UnsupportedError: neither number divides the other.
    """
    if num_kv_heads >= num_ranks or num_ranks % num_kv_heads:
        return even_share("KV heads", num_kv_heads, rank, num_ranks)
    head = rank * num_kv_heads // num_ranks
    return Share(num_kv_heads, ((head, head + 1),))
