"""How ranks exchange tensors: the sum over tensor-parallel ranks, and hidden states from stage to stage."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Protocol

from trtdecode.manifest import RankLayout

if TYPE_CHECKING:
    import torch

#: A rank that waits longer for another gives up. A step's ranks differ by what one of them computes alone.
TIMEOUT = datetime.timedelta(minutes=5)


class RankLinks(Protocol):
    """What an executor of one rank needs of the others. Every rank makes the same calls in the same order."""

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all tensor-parallel ranks' parts, in `part` itself."""
        ...

    def receive(self, hidden: torch.Tensor) -> torch.Tensor:
        """Fills `hidden` [T, hidden] with what the stage before sends."""
        ...

    def send(self, hidden: torch.Tensor) -> None:
        """Hands [T, hidden] to the next stage."""
        ...


class DistributedLinks:
    """`RankLinks` over torch.distributed: NCCL between GPUs, gloo between CPUs.

    Args:
        init_method: where the ranks meet, a URL as torch.distributed takes it; every rank is given the same.
        device: this rank's.
    """

    def __init__(self, rank: int, layout: RankLayout, init_method: str, device: torch.device) -> None:
        import torch.distributed as dist

        if device.type == "cuda":
            import torch

            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=init_method,
            rank=rank,
            world_size=layout.num_ranks,
            timeout=TIMEOUT,
        )
        self._rank = rank
        self._stride = layout.tensor_parallel_size  # from a rank to the same one of the next stage
        stages = [
            [layout.rank_of(stage, one) for one in range(layout.tensor_parallel_size)]
            for stage in range(layout.pipeline_parallel_size)
        ]
        # Every rank has to make every group, its own or not.
        groups = [dist.new_group(ranks) for ranks in stages]
        self._tensor_group = groups[rank // layout.tensor_parallel_size]

    def all_reduce(self, part: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        dist.all_reduce(part, group=self._tensor_group)
        return part

    def receive(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch.distributed as dist

        dist.recv(hidden, src=self._rank - self._stride)
        return hidden

    def send(self, hidden: torch.Tensor) -> None:
        import torch.distributed as dist

        dist.send(hidden.contiguous(), dst=self._rank + self._stride)

    def close(self) -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
