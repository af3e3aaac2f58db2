"""Arrays -> Triton tensors, where most of a response is what the one before had.

A tensor costs the stub some 15 us: numpy's array, Triton's, room in shared memory. Three of the four that a streamed
token usually has ("None" as finish reason, the number of tokens in and out) are the same again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

#: Tensors kept; each holds some hundred bytes of shared memory.
MAX_TENSORS = 512


class TensorCache:
    """Keeps the tensors of read-only arrays, which come again as the same object.

    Args:
        make: (name, array) -> tensor, `pb_utils.Tensor`.
    """

    def __init__(self, make: Callable[[str, npt.NDArray[Any]], Any]) -> None:
        self._make = make
        self._known: dict[tuple[str, int], tuple[npt.NDArray[Any], Any]] = {}
        #: To be held while a response is sent: the first to send a tensor copies it into shared memory.
        self.lock = threading.Lock()

    def get(self, name: str, array: npt.NDArray[Any]) -> Any:
        """The tensor of an array; a new one where the array may change."""
        if array.flags.writeable:
            return self._make(name, array)
        key = (name, id(array))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_TENSORS:
                self._known.clear()
            known = self._known[key] = (array, self._make(name, array))  # an array that is kept keeps its id
        return known[1]

    def clear(self) -> None:
        """Gives the shared memory back."""
        self._known.clear()
