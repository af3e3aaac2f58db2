"""Statistics of a decoder's matmul inputs, collected when they are first asked for.

Everything but Hessians fits in memory at once. Hessians of a large model do not, so GPTQ walks through the model in
passes: each pass streams the text once and keeps the Hessians of as many consecutive layers as the budget holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from trtbuild.quantize.calibrate import calibrate_decoder
from trtbuild.quantize.statistics import InputStatistics

HESSIAN_BUDGET_BYTES = 2 << 30


class DecoderStatistics(Mapping[str, InputStatistics]):
    """A mapping from value name to statistics; asking for one may stream the text.

    Args:
        texts: token ids.
        widths: the values of interest, in graph order, with their widths.
        hessian_budget: bytes for Hessians at a time; 0 collects none.
        progress: called with (texts done, texts in all) of the current pass.
    """

    def __init__(
        self,
        graph_path: Path,
        texts: Sequence[Sequence[int]],
        widths: Mapping[str, int],
        *,
        hessian_budget: int = 0,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._graph_path = graph_path
        self._texts = texts
        self._widths = dict(widths)
        self._budget = hessian_budget
        self._progress = progress
        self._present: dict[str, InputStatistics] = {}
        self.num_passes = 0

    def __getitem__(self, name: str) -> InputStatistics:
        if name not in self._widths:
            raise KeyError(name)
        if name not in self._present:
            self._present = {}  # the previous pass's Hessians go before the next are made
            self._present = calibrate_decoder(
                self._graph_path,
                self._texts,
                self._next_pass(name),
                with_hessians=self._budget > 0,
                progress=self._progress,
            )
            self.num_passes += 1
        return self._present[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._widths)

    def __len__(self) -> int:
        return len(self._widths)

    def _next_pass(self, first: str) -> dict[str, int]:
        """`first` and the values after it whose Hessians fit the budget (at least `first`)."""
        if not self._budget:
            return self._widths
        names = list(self._widths)
        chosen: dict[str, int] = {}
        left = self._budget
        for name in names[names.index(first) :]:
            left -= 4 * self._widths[name] ** 2
            if left < 0 and chosen:
                break
            chosen[name] = self._widths[name]
        return chosen
