"""What the sampler asks of a grammar. `text/grammar.py` has the implementation, which needs a library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtdecode.errors import RequestError


class Guide(Protocol):
    """One request's place in its grammar, on `request.guide` from before admission to the end."""

    mask: npt.NDArray[np.uint32]  # [ceil(V / 32)] bit i of word w: token 32 * w + i may come next
    is_complete: bool  # the text is whole and nothing but an end token may follow
    error: RequestError | None  # why this request cannot go on

    def prepare(self, output_ids: Sequence[int]) -> None:
        """Sets `mask`, `is_complete` and `error` for the token after `output_ids`.

        Cheap when nothing came since the last call. Raises nothing: what goes wrong is this request's `error`.
        """
        ...
