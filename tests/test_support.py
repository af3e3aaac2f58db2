"""The support table: what is refused, and that every refusal names something that works."""

from __future__ import annotations

import itertools

import pytest
from trtdecode import support
from trtdecode.errors import UnsupportedError

COMBINATIONS = [
    (precision, sm, flavour)
    for flavour, sms in support.FLAVOUR_SMS.items()
    for precision, sm in itertools.product(support.ENGINE_PRECISIONS, sms)
]


@pytest.mark.parametrize(
    ("precision", "sm", "flavour", "text"),
    [
        (
            "fp8",
            80,
            "tensorrt",
            "--precision fp8: fp8 engines need SM >= 89, SM 80 (Ampere (A100)) has no FP8 (E4M3) matmuls; use int8",
        ),
        (
            "bf16",
            75,
            "tensorrt-rtx",
            "--precision bf16: bf16 engines need SM >= 80, SM 75 (Turing (T4)) has no BF16 arithmetic; use fp16",
        ),
        (
            "int4",
            75,
            "tensorrt-rtx",
            "--precision int4: int4 engines need SM >= 80, SM 75 (Turing (T4)) has no INT4 weights in matmuls; "
            "use int8_weight",
        ),
        (
            "fp16",
            90,
            "tensorrt-rtx",
            "SM 90 is not a target of tensorrt-rtx (it builds for 75, 80, 86, 89, 120, 121); use --flavour tensorrt",
        ),
        (
            "fp16",
            70,
            "tensorrt",
            "SM 70 is not a target of tensorrt (it builds for 80, 86, 89, 90, 100, 120); use one of those",
        ),
        (
            "fp4",
            89,
            "tensorrt",
            "--precision: 'fp4' is unknown; use one of fp16, bf16, fp8, int8, int8_weight, int4",
        ),
        ("fp16", 89, "onnx", "flavour 'onnx' is unknown; use one of tensorrt, tensorrt-rtx"),
    ],
)
def test_refusal_names_value_limit_and_alternative(precision: str, sm: int, flavour: str, text: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        support.check_engine(precision, sm, flavour)
    assert str(caught.value) == text


@pytest.mark.parametrize(("precision", "sm", "flavour"), COMBINATIONS)
def test_check_agrees_with_the_list(precision: str, sm: int, flavour: str) -> None:
    if precision in support.supported_precisions(sm, flavour):
        support.check_engine(precision, sm, flavour)
        return
    with pytest.raises(UnsupportedError) as caught:
        support.check_engine(precision, sm, flavour)
    instead = str(caught.value).rsplit("use ", 1)[1]
    support.check_engine(instead, sm, flavour)  # the advice works


def test_which_precisions_an_sm_has() -> None:
    assert support.supported_precisions(75, "tensorrt-rtx") == ("fp16", "int8", "int8_weight")
    assert support.supported_precisions(80, "tensorrt") == ("fp16", "bf16", "int8", "int8_weight", "int4")
    assert support.supported_precisions(90, "tensorrt") == ("fp16", "bf16", "fp8", "int8", "int8_weight", "int4")
    assert support.supported_precisions(90, "tensorrt-rtx") == ()


def test_which_builders_an_sm_has() -> None:
    assert support.supported_flavours(89) == ("tensorrt", "tensorrt-rtx")
    assert support.supported_flavours(90) == ("tensorrt",)
    assert support.supported_flavours(121) == ("tensorrt-rtx",)
    assert support.supported_flavours(61) == ()


def test_kv_cache_refusal_names_int8() -> None:
    support.check_kv_cache("fp8", 89)
    support.check_kv_cache("int8", 75)
    with pytest.raises(UnsupportedError) as caught:
        support.check_kv_cache("fp8", 86)
    assert str(caught.value) == (
        "kv_cache_precision fp8: fp8 KV caches need SM >= 89, SM 86 (Ampere (A10, RTX 30)) has no FP8 (E4M3) "
        "conversion; use int8"
    )


def test_every_listed_sm_has_a_name() -> None:
    assert {sm for sms in support.FLAVOUR_SMS.values() for sm in sms} == set(support.SM_NAMES)
