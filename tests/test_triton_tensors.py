"""Which tensors are made anew, and which come again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from trtdecode import triton_tensors
from trtdecode.triton_tensors import TensorCache


class Made:
    """Stands for Triton's Tensor: knows what it was made of."""

    def __init__(self, name: str, array: npt.NDArray[np.uint32]) -> None:
        self.name = name
        self.values = array.tolist()


def fixed(*values: int) -> npt.NDArray[np.uint32]:
    array = np.array(values, np.uint32)
    array.flags.writeable = False
    return array


def test_a_read_only_array_has_one_tensor_a_name() -> None:
    cache, array = TensorCache(Made), fixed(4)
    first = cache.get("num_input_tokens", array)
    assert (first.name, first.values) == ("num_input_tokens", [4])
    assert cache.get("num_input_tokens", array) is first
    other = cache.get("num_output_tokens", array)
    assert (other.name, other.values) == ("num_output_tokens", [4])


def test_an_array_that_may_change_is_read_again() -> None:
    cache, array = TensorCache(Made), np.array([1], np.uint32)
    assert cache.get("output_ids", array).values == [1]
    array[0] = 2
    assert cache.get("output_ids", array).values == [2]


def test_an_id_that_is_used_again_is_another_array() -> None:
    cache = TensorCache(Made)
    for number in range(200):  # nobody else keeps the array, so its memory would serve the next
        assert cache.get("num_input_tokens", fixed(number)).values == [number]


def test_no_more_than_the_limit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_tensors, "MAX_TENSORS", 3)
    cache, arrays = TensorCache(Made), [fixed(number) for number in range(4)]
    tensors = [cache.get("x", array) for array in arrays]
    assert cache.get("x", arrays[3]) is tensors[3]
    assert cache.get("x", arrays[0]) is not tensors[0], "it went when the fourth came"
    cache.clear()
    assert cache.get("x", arrays[3]) is not tensors[3]
