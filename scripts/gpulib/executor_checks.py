"""The torch executor on CUDA: tokens against the CPU's, and a decode step's time against its bandwidth bound."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from conformance.driver import Driver
from conformance.tiny_graph import TinySpec
from cuda_machine import copy_bandwidth
from trtdecode.executor.cuda_device import Device, TorchCudaDevice
from trtdecode.executor.device_step import StepLimits
from trtdecode.executor.torch_cuda_executor import TorchCudaExecutor
from trtdecode.executor.torch_executor import TorchExecutor

Array = npt.NDArray[Any]

#: A random decoder of few layers: what is checked is the path, not the weights.
TOKENS_SPEC = TinySpec(num_layers=4, num_heads=6, num_kv_heads=2, head_dim=64, mlp_size=512, vocab_size=1000)
#: SmolLM2-135M's shape with random weights (no download), head and embedding untied.
SPEED_SPEC = TinySpec(
    num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, mlp_size=1536, vocab_size=49152, max_positions=2048
)
BATCH_SIZES = (1, 8, 32, 64)


def tokens_on_cuda() -> dict[str, Any]:
    """Greedy tokens in f32 must be the CPU's; logits of the other precisions must be near."""
    device = TorchCudaDevice("cuda:0")
    variants = [("f32", "f32", 1e-3), ("f16", "f16", 0.15), ("bf16", "bf16", 1.0), ("f16", "int8", 0.5)]
    if device.sm >= 89:
        variants.append(("f16", "fp8", 1.5))
    return compare_tokens(device, TOKENS_SPEC, variants, num_new=24)


def compare_tokens(
    device: Device, spec: TinySpec, variants: Sequence[tuple[str, str, float]], *, num_new: int
) -> dict[str, Any]:
    """Prefills three prompts, decodes through captured graphs, and compares with the plain CPU executor.

    Args:
        variants: (dtype, KV precision, largest allowed difference of a logit); tokens are fed from the CPU's run, so
            that differences do not add up.

    Raises:
        AssertionError: a logit beyond the limit, an f32 token that differs, or no step that was replayed.
    """
    prompts = [[5, 9, 2], [7], list(range(3, 20))]
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = spec.write(Path(folder))
        expected = _run(TorchExecutor(path, kv_cache_bytes=1 << 24), prompts, num_new)
        for dtype, kv_precision, limit in variants:
            executor = TorchCudaExecutor(
                path,
                device=device,
                limits=StepLimits(4, 64, 256),
                dtype=dtype,
                kv_cache_precision=kv_precision,
                kv_cache_bytes=1 << 24,
                graph_batch_sizes=(4,),
            )
            got = _run(executor, prompts, num_new, forced=expected)
            difference = float(np.abs(got - expected).max())
            same = float((got.argmax(-1) == expected.argmax(-1)).mean())
            name = f"{dtype} with {kv_precision} pages"
            assert difference <= limit, f"{name}: a logit is off by {difference:.3g}, limit {limit:g}"
            assert dtype != "f32" or kv_precision != "f32" or same == 1.0, f"{name}: {same:.1%} of tokens are the CPU's"
            assert executor._runner.num_replayed == num_new, f"{name}: {executor._runner.num_replayed} steps replayed"
            facts[name] = {"largest_logit_difference": difference, "same_tokens": same}
            executor.close()
    return facts


def _run(
    executor: TorchExecutor | TorchCudaExecutor,
    prompts: list[list[int]],
    num_new: int,
    forced: Array | None = None,
) -> Array:
    """Logits [1 + num_new, sequences, V] of a greedy run, or of one that is fed another run's tokens."""
    driver = Driver(executor, list(range(1, executor.num_blocks)))
    sequences = [driver.sequence(tokens, room=num_new) for tokens in prompts]
    rows = [driver.step(*((s, len(s.tokens)) for s in sequences))]
    for index in range(num_new):
        chosen = (rows[-1] if forced is None else forced[index]).argmax(-1)
        for sequence, token in zip(sequences, chosen, strict=True):
            sequence.tokens.append(int(token))
        rows.append(driver.step(*((s, 1) for s in sequences)))
    return np.stack(rows)


def decode_step_on_cuda() -> dict[str, Any]:
    """Milliseconds of a greedy decode step, replayed and eager, and the time that reading the weights alone takes."""
    return time_decode(TorchCudaDevice("cuda:0"), SPEED_SPEC, BATCH_SIZES, copy_bandwidth(), repeats=50, context=512)


def time_decode(
    device: Device,
    spec: TinySpec,
    batch_sizes: Sequence[int],
    bandwidth: float,
    *,
    repeats: int,
    context: int,
    dtype: str = "f16",
) -> dict[str, Any]:
    """The median of `repeats` calls of `execute` with `context` tokens cached, host work included."""
    most = max(batch_sizes)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = spec.write(Path(folder))
        for graphs in (True, False):
            executor = TorchCudaExecutor(
                path,
                device=device,
                limits=StepLimits(most, max(most, context), context + repeats + 1),
                dtype=dtype,
                kv_cache_bytes=_pool_bytes(spec, most, context + repeats + 1, dtype),
                graphs=graphs,
                graph_batch_sizes=batch_sizes if graphs else (),
            )
            rows += [
                {"cuda_graphs": graphs, "batch": size, **_time_one(executor, size, repeats, context)}
                for size in batch_sizes
            ]
            executor.close()
    weight_bytes = _weight_bytes(spec) * (4 if dtype == "f32" else 2)
    kv_bytes = 2 * spec.num_layers * spec.kv_size * context * (4 if dtype == "f32" else 2)
    for row in rows:
        bound = (weight_bytes + row["batch"] * kv_bytes) / bandwidth
        row["bound_milliseconds"] = round(bound * 1e3, 4)
        row["times_the_bound"] = round(row["milliseconds"] / (bound * 1e3), 2)
    return {"context": context, "weight_bytes": weight_bytes, "kv_bytes_a_sequence": kv_bytes, "rows": rows}


def _time_one(executor: TorchCudaExecutor, size: int, repeats: int, context: int) -> dict[str, Any]:
    driver = Driver(executor, list(range(1, executor.num_blocks)))
    sequences = [driver.sequence([1] * context, room=repeats) for _ in range(size)]
    for sequence in sequences:
        sequence.num_computed = context  # the cache's content does not change the time
    seconds = []
    for _ in range(repeats):
        for sequence in sequences:
            sequence.tokens.append(1)
        batch = driver.batch(*((s, 1) for s in sequences), argmax_only=True)
        began = time.perf_counter()
        executor.execute(batch)
        seconds.append(time.perf_counter() - began)
        for sequence in sequences:
            sequence.num_computed += 1
    median = float(np.median(seconds))
    return {"milliseconds": round(median * 1e3, 4), "tokens_per_second": round(size / median, 1)}


def _pool_bytes(spec: TinySpec, num_seqs: int, context: int, dtype: str) -> int:
    block = 2 * spec.num_layers * spec.kv_size * 16 * (4 if dtype == "f32" else 2)
    return (num_seqs * -(-context // 16) + 1) * block


def _weight_bytes(spec: TinySpec) -> int:
    """Weights read in a decode step, in values: all but the embedding, of which one row a token is read."""
    hidden, kv = spec.hidden_size, spec.kv_size
    layer = hidden * (hidden + 2 * kv) + hidden * hidden + 3 * hidden * spec.mlp_size
    return spec.num_layers * layer + hidden * spec.vocab_size
