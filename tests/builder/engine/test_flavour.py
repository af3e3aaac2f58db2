"""Which builder a build uses."""

from __future__ import annotations

import pytest
from trtbuild.engine.flavour import installed_flavours, load_tensorrt, resolve_flavour
from trtdecode.errors import UnsupportedError

BOTH = ("tensorrt", "tensorrt-rtx")


@pytest.mark.parametrize(
    ("flavour", "sm", "installed", "chosen"),
    [
        ("auto", 89, BOTH, "tensorrt"),
        ("auto", 89, ("tensorrt-rtx",), "tensorrt-rtx"),
        ("auto", 121, BOTH, "tensorrt-rtx"),
        ("auto", 90, BOTH, "tensorrt"),
        ("tensorrt-rtx", 89, BOTH, "tensorrt-rtx"),
    ],
)
def test_choice(flavour: str, sm: int, installed: tuple[str, ...], chosen: str) -> None:
    assert resolve_flavour(flavour, sm, installed) == chosen


@pytest.mark.parametrize(
    ("flavour", "sm", "installed", "text"),
    [
        ("auto", 90, ("tensorrt-rtx",), "--sm 90 needs tensorrt, installed: tensorrt-rtx; `pip install tensorrt`"),
        ("auto", 89, (), "--sm 89 needs tensorrt or tensorrt-rtx, installed: none; `pip install tensorrt`"),
        ("auto", 61, BOTH, "--sm 61: no builder targets it; use one of 75, 80, 86, 89, 90, 100, 120, 121"),
        ("tensorrt", 89, ("tensorrt-rtx",), "--flavour tensorrt: not installed; `pip install tensorrt`"),
        ("trt", 89, BOTH, "--flavour 'trt' is unknown; use auto or tensorrt or tensorrt-rtx"),
    ],
)
def test_refusal(flavour: str, sm: int, installed: tuple[str, ...], text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve_flavour(flavour, sm, installed)
    assert str(caught.value) == text


def test_one_flavour_a_process() -> None:
    assert "tensorrt-rtx" in installed_flavours()
    loaded = load_tensorrt("tensorrt-rtx")
    assert loaded.is_rtx
    assert loaded.version.startswith("1.")
    with pytest.raises(UnsupportedError, match="--flavour tensorrt"):
        load_tensorrt("tensorrt")  # not installed here; with it installed: this process has the other
