"""Rows and requests for the sampler's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from trtdecode.request import Request
from trtdecode.sampling.native_rows import NativeRows
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.rows import NumpyRows, RowSampler
from trtdecode.sampling.sampler import Sampler

EOS = 2


def new_request(*, prompt: list[int] | None = None, output: list[int] | None = None, **fields: Any) -> Request:
    """A request with `seed` 42; what is a field of Request goes there, the rest into its parameters."""
    own = {name: fields.pop(name) for name in ("seed", "sample_index", "bad_word_ids", "guide") if name in fields}
    seed = own.pop("seed", 42)
    request = Request(
        prompt_ids=prompt or [1],
        params=SamplingParams(**fields),
        on_event=lambda _event: None,
        seed=seed,
        arrival_time=0.0,
        **own,
    )
    request.output_ids = list(output or [])
    return request


def rows_of(name: str) -> RowSampler:
    if name == "numpy":
        return NumpyRows()
    try:
        return NativeRows(2)
    except ImportError:
        pytest.skip("the native sampler is not built")


@pytest.fixture(params=["numpy", "native"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    """Either way to work on rows: what these tests say holds for both."""
    return Sampler([EOS], rows=rows_of(request.param))


def logits_of(*rows: list[float]) -> npt.NDArray[np.float32]:
    return np.array(rows, np.float32)
