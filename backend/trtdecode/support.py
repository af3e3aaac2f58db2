"""Which precisions exist on which GPU with which builder: the one table.

Read by the engine build, the manifest check, the planner and the tests, so that a combination is refused before any
work starts, and by the same sentence everywhere. Compute capability 8.9 is written SM 89.

The TensorRT-RTX rows were found by building: 1.7.1 compiles these precisions for these SMs without a GPU and refuses
the others ("model contains HW-specific datatypes"). `tests/builder/engine/test_support_by_building.py` repeats that.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtdecode.errors import UnsupportedError

TENSORRT = "tensorrt"
TENSORRT_RTX = "tensorrt-rtx"
FLAVOURS = (TENSORRT, TENSORRT_RTX)

#: Compute capabilities each builder compiles for. RTX is for GeForce and workstation GPUs, so it has no SM 90 or 100.
FLAVOUR_SMS: dict[str, tuple[int, ...]] = {
    TENSORRT: (80, 86, 89, 90, 100, 120),
    TENSORRT_RTX: (75, 80, 86, 89, 120, 121),
}

SM_NAMES: dict[int, str] = {
    75: "Turing (T4)",
    80: "Ampere (A100)",
    86: "Ampere (A10, RTX 30)",
    89: "Ada (L4, L40S, RTX 40)",
    90: "Hopper (H100, H200)",
    100: "Blackwell (B200)",
    120: "Blackwell (RTX 50, RTX PRO)",
    121: "Blackwell (GB10)",
}


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one precision asks of the GPU, and what to use where that is missing."""

    min_sm: int
    hardware: str  # what older GPUs lack, for the error text
    instead: str  # the precision to name in a refusal; itself available on every SM that refuses this one


#: Engine precisions: type of the weights, then of the activations that enter a matmul.
ENGINE_PRECISIONS: dict[str, Requirement] = {
    "fp16": Requirement(75, "FP16 tensor cores", ""),
    "bf16": Requirement(80, "BF16 arithmetic", "fp16"),
    "fp8": Requirement(89, "FP8 (E4M3) matmuls", "int8"),
    "int8": Requirement(75, "INT8 tensor cores", ""),
    "int8_weight": Requirement(75, "FP16 tensor cores", ""),
    "int4": Requirement(80, "INT4 weights in matmuls", "int8_weight"),
}

#: KV cache precisions on a GPU (the CPU executor has its own pair, f32 and u8).
KV_CACHE_PRECISIONS: dict[str, Requirement] = {
    "f16": Requirement(75, "FP16 arithmetic", ""),
    "fp8": Requirement(89, "FP8 (E4M3) conversion", "int8"),
    "int8": Requirement(75, "INT8 conversion", ""),
}


def check_engine(precision: str, sm: int, flavour: str) -> None:
    """Refuses a combination that cannot be built.

    Args:
        precision: a key of `ENGINE_PRECISIONS`.
        sm: compute capability without the dot, 89 for 8.9.
        flavour: "tensorrt" or "tensorrt-rtx".

    Raises:
        UnsupportedError: naming the value, what is supported and what to use instead.
    """
    if flavour not in FLAVOUR_SMS:
        raise UnsupportedError(f"flavour {flavour!r} is unknown; use one of {', '.join(FLAVOURS)}")
    if sm not in FLAVOUR_SMS[flavour]:
        raise UnsupportedError(_no_such_sm(sm, flavour))
    _check_requirement("--precision", precision, ENGINE_PRECISIONS, sm, "engines")


def check_kv_cache(precision: str, sm: int) -> None:
    """Refuses a KV cache precision that the GPU cannot convert. Raises UnsupportedError as `check_engine` does."""
    _check_requirement("kv_cache_precision", precision, KV_CACHE_PRECISIONS, sm, "KV caches")


def supported_precisions(sm: int, flavour: str) -> tuple[str, ...]:
    """Engine precisions for one SM and builder, in the table's order; empty where the builder has no such SM."""
    if sm not in FLAVOUR_SMS[flavour]:
        return ()
    return tuple(name for name, needs in ENGINE_PRECISIONS.items() if sm >= needs.min_sm)


def supported_flavours(sm: int) -> tuple[str, ...]:
    """The builders that compile for an SM; "tensorrt" first, since it is preferred where it is installed."""
    return tuple(flavour for flavour in FLAVOURS if sm in FLAVOUR_SMS[flavour])


def engine_precision_of(precision: str) -> str:
    """The engines' name of a weight precision: graphs say f16 where engines say fp16."""
    return "fp16" if precision == "f16" else precision


def engine_directory(precision: str, sm: int) -> str:
    """Folder of one precision's engines, relative to the version folder."""
    return f"engines/sm{sm}-{precision}"


def _no_such_sm(sm: int, flavour: str) -> str:
    known = ", ".join(str(one) for one in FLAVOUR_SMS[flavour])
    others = supported_flavours(sm)
    advice = f"use --flavour {others[0]}" if others else "use one of those"
    return f"SM {sm} is not a target of {flavour} (it builds for {known}); {advice}"


def _check_requirement(field: str, precision: str, table: dict[str, Requirement], sm: int, what: str) -> None:
    needs = table.get(precision)
    if needs is None:
        raise UnsupportedError(f"{field}: {precision!r} is unknown; use one of {', '.join(table)}")
    if sm < needs.min_sm:
        name = SM_NAMES.get(sm, "this GPU")
        raise UnsupportedError(
            f"{field} {precision}: {precision} {what} need SM >= {needs.min_sm}, SM {sm} ({name}) has no "
            f"{needs.hardware}; use {needs.instead}"
        )
