"""The KV pool of an executor on a device, and the attention that reads and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtdecode import support
from trtdecode.errors import ConfigError
from trtdecode.executor.attention_spec import AttentionSpec
from trtdecode.executor.base import Batch
from trtdecode.executor.kv_pool import HostBlocks, blocks_in_budget, host_blocks_in_budget

if TYPE_CHECKING:
    import torch

    from trtdecode.executor.cuda_device import Device
    from trtdecode.executor.device_step import DeviceStep
    from trtdecode.kernels.pages import KvPages

#: `kv_cache_precision: auto` stores what is computed.
DEFAULT_BLOCK_SIZE = 16


class PagePool:
    """Pages of every layer.

    Args:
        specs: of the attention nodes by name, in order of layers.
        precision: a key of `kernels.pages.PAGE_DTYPES`.
        num_bytes: of device memory to use; whole blocks over all layers.
        swap_space_bytes: of page-locked host memory for blocks of preempted sequences; 0: none.

    Raises:
        ConfigError: an unknown precision, or not even one block fits.
        UnsupportedError: the GPU has no such precision.
    """

    def __init__(
        self,
        device: Device,
        specs: Mapping[str, AttentionSpec],
        *,
        precision: str,
        num_bytes: int,
        block_size: int = DEFAULT_BLOCK_SIZE,
        swap_space_bytes: int = 0,
    ) -> None:
        from trtdecode.kernels.pages import PAGE_DTYPES, KvPages, page_bytes

        if precision not in PAGE_DTYPES:
            raise ConfigError(f"kv_cache_precision: got {precision!r}; on a GPU one of {', '.join(PAGE_DTYPES)}")
        if precision in support.KV_CACHE_PRECISIONS:
            support.check_kv_cache(precision, device.sm)
        self._device = device
        self.precision = precision
        self.block_size = block_size
        self.block_bytes = sum(
            page_bytes(precision, spec.num_kv_heads, block_size, spec.head_dim) for spec in specs.values()
        )
        self.num_blocks = blocks_in_budget(num_bytes, self.block_bytes)
        self.layers: dict[str, KvPages] = {
            name: KvPages.allocate(precision, self.num_blocks, spec.num_kv_heads, block_size, spec.head_dim, device)
            for name, spec in specs.items()
        }

        self.num_host_blocks = host_blocks_in_budget(swap_space_bytes, self.block_bytes)
        tensors = [tensor for pages in self.layers.values() for tensor in pages.tensors] if self.num_host_blocks else []
        hosts = [device.allocate_pinned((self.num_host_blocks, *t.shape[1:]), t.dtype) for t in tensors]
        self._host_blocks = HostBlocks(tensors, hosts, device.copy)

    def copy_blocks(self, batch: Batch) -> None:
        """Makes a batch's swaps and copies in order, on the stream; only the stream touches the host blocks."""
        self._host_blocks.swap(batch)
        for source, target in batch.block_copies:
            for pages in self.layers.values():
                for tensor in pages.tensors:
                    self._device.copy(tensor[target], tensor[source])

    def describe(self) -> dict[str, str]:
        first = next(iter(self.layers.values()))
        return {
            "kv_cache_precision": self.precision,
            "kv_cache_layout": f"{2 * len(self.layers)} x {list(first.key.shape)}",
            "kv_cache_bytes": str(self.num_blocks * self.block_bytes),
        }


class KernelAttention:
    """PagedAttention through our kernels: stores the step's K and V, then attends. One for all layers.

    Args:
        max_num_seqs: the largest decode batch; split-K's workspace holds every batch up to it.

    `use` gives it the pool, which is allocated last: it takes what memory is left.
    """

    def __init__(self, device: Device, specs: Mapping[str, AttentionSpec], *, max_num_seqs: int) -> None:
        import torch

        from trtdecode.kernels.paged_attention import SplitWorkspace, choose_num_splits

        self._launcher = device.launcher
        self._specs = specs
        self._layers: Mapping[str, KvPages] = {}
        self._slopes = {
            name: self._slopes_of(device, spec) if spec.alibi_slopes else None for name, spec in specs.items()
        }
        heads = max(spec.num_heads for spec in specs.values())
        dim = max(spec.head_dim for spec in specs.values())
        kv_heads = min(spec.num_kv_heads for spec in specs.values())
        self._num_splits = [
            choose_num_splits(rows, kv_heads, device.num_multiprocessors) for rows in range(max_num_seqs + 1)
        ]
        most = max(rows * splits for rows, splits in enumerate(self._num_splits))
        self._partial = device.allocate((most * heads * dim,), torch.float32)
        self._log_sum = device.allocate((most * heads,), torch.float32)
        self._workspace_of = SplitWorkspace.of

    def use(self, pool: PagePool) -> None:
        """The pages that the next steps read and write."""
        self._layers = pool.layers

    def __call__(
        self,
        name: str,
        step: DeviceStep,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
    ) -> torch.Tensor:
        """Attention node `name` of a step.

        Args:
            query, output: [T, num_heads * head_dim]; key, value: [T, num_kv_heads * head_dim]. Rows may be strided.
        """
        from trtdecode.kernels.kv_write import kv_write
        from trtdecode.kernels.paged_attention import paged_attention

        spec, pages = self._specs[name], self._layers[name]
        rows = step.ragged.num_sequences
        workspace = self._workspace_of(self._partial, self._log_sum, spec, rows, self._num_splits[rows])
        kv_write(self._launcher, key, value, step.slots, pages)
        return paged_attention(self._launcher, query, pages, step.ragged, spec, workspace, output, self._slopes[name])

    @staticmethod
    def _slopes_of(device: Device, spec: AttentionSpec) -> torch.Tensor:
        import torch

        slopes = device.allocate((spec.num_heads,), torch.float32)
        values = torch.tensor(spec.alibi_slopes)
        return device.run(lambda: slopes.copy_(values))
