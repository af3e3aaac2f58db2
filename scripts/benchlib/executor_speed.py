"""Decode speed of the OpenVINO executor alone, and the bound its matrix products set.

    python scripts/benchlib/executor_speed.py GRAPH [GRAPH ...] [--variant NAME=KEY:VALUE,...] [--batch 1 8 32 64]

Every variant is run in turn, several times over, so that a machine that drifts drifts for all; medians are printed.
`bound` variants run the same graph without attention ("matmuls+rest") and with nothing but matrix products
("matmuls"): what an executor could reach if everything else were free.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from trtdecode.executor.base import Batch

PROMPT_LEN = 16
POOL_BYTES = 1 << 30
DEFAULT_BLOCK_SIZE = 32  # of a graph without caches

Step = Callable[[Batch], Any]


@dataclass(frozen=True)
class Variant:
    """One column: a way to run decode steps."""

    name: str
    make: Callable[[], tuple[Step, int]]  # the step and its block size


class DecodeLoad:
    """`num_sequences` sequences of one length that all decode a token a step; block tables are scattered."""

    def __init__(self, num_sequences: int, block_size: int, max_len: int, vocab_size: int) -> None:
        self.num_sequences = num_sequences
        self.block_size = block_size
        blocks = -(-max_len // block_size)
        random = np.random.default_rng(0)
        self._tables = random.permutation(num_sequences * blocks).reshape(num_sequences, blocks).astype(np.int32)
        self._tokens = random.integers(0, vocab_size, (max_len, num_sequences))

    def prefill(self) -> Batch:
        return self._batch(0, PROMPT_LEN)

    def decode(self, position: int) -> Batch:
        return self._batch(position, 1)

    def _batch(self, past_len: int, num_new: int) -> Batch:
        num, blocks = self.num_sequences, -(-(past_len + num_new) // self.block_size)
        begins = np.arange(num + 1, dtype=np.int32)
        return Batch(
            input_ids=self._tokens[past_len : past_len + num_new].T.reshape(-1).copy(),
            positions=np.tile(np.arange(past_len, past_len + num_new), num),
            past_lens=np.full(num, past_len, np.int32),
            query_begins=begins * np.int32(num_new),
            block_indices=np.ascontiguousarray(self._tables[:, :blocks]).reshape(-1),
            block_begins=begins * np.int32(blocks),
            max_context_len=past_len + num_new,
            logit_indices=(begins[1:] * num_new - 1).astype(np.int64),
            argmax_only=True,
        )


def executor_variant(name: str, graph: Path, options: dict[str, Any]) -> Variant:
    """The real executor with keyword arguments `options`."""

    def make() -> tuple[Step, int]:
        from trtdecode.executor.openvino_executor import OpenVinoExecutor

        executor = OpenVinoExecutor(graph, **{"kv_cache_bytes": POOL_BYTES, "kv_cache_precision": "u8", **options})
        return executor.execute, executor.block_size

    return Variant(name, make)


def bound_variant(name: str, graph: Path, options: dict[str, Any], *, matmuls_only: bool) -> Variant:
    """The same graph with attention (and, with `matmuls_only`, all but the matrix products) passed through."""

    def make() -> tuple[Step, int]:
        import openvino as ov
        from trtdecode.executor.machine import usable_physical_cores
        from trtdecode.executor.openvino_precisions import programs

        threads = options.get("num_threads") or usable_physical_cores()
        core = ov.Core()
        with tempfile.TemporaryDirectory(prefix="executor_speed_") as directory:
            stripped = Path(directory) / graph.name
            strip_graph(graph, stripped, matmuls_only=matmuls_only)
            model = core.read_model(stripped)  # maps the weights, so the folder may go
        requests = []
        for least, special in programs(options.get("compute_precision", "f32"), model):
            compiled = core.compile_model(model, "CPU", {**special, "INFERENCE_NUM_THREADS": threads})
            requests.append((least, compiled.create_infer_request()))

        def step(batch: Batch) -> None:
            request = next(request for least, request in reversed(requests) if least <= batch.num_tokens)
            for port in request.model_inputs:
                request.set_tensor(port, ov.Tensor(np.asarray(getattr(batch, port.any_name)), shared_memory=True))
            request.infer()

        return step, DEFAULT_BLOCK_SIZE

    return Variant(name, make)


def strip_graph(graph: Path, target: Path, *, matmuls_only: bool) -> None:
    """Replaces operators by Identity of one input. Weights are copied beside the new graph."""
    import onnx

    passed_through = {"PagedAttention": 0}
    if matmuls_only:
        passed_through |= {"RMSNormalization": 0, "LayerNormalization": 0, "RotaryEmbedding": 0, "Swish": 0, "Add": 1}
    model = onnx.load(str(graph), load_external_data=False)
    for node in model.graph.node:
        if node.op_type in passed_through:
            kept = node.input[passed_through[node.op_type]]
            node.CopyFrom(onnx.helper.make_node("Identity", [kept], list(node.output), name=node.name))
    read = {name for node in model.graph.node for name in node.input}
    for value in [value for value in model.graph.input if value.name not in read]:
        model.graph.input.remove(value)
    for entry in (entry for tensor in model.graph.initializer for entry in tensor.external_data):
        if entry.key == "location" and not (target.parent / entry.value).exists():
            shutil.copyfile(graph.parent / entry.value, target.parent / entry.value)  # a link may not leave the folder
    onnx.save(model, str(target))


def measure(variants: list[Variant], batches: list[int], steps: int, repeats: int, vocab: int) -> dict[str, Any]:
    """Tokens a second by variant and batch size: median, minimum and maximum of `repeats` interleaved runs."""
    made = {variant.name: variant.make() for variant in variants}
    rates: dict[str, dict[int, list[float]]] = {name: {batch: [] for batch in batches} for name in made}
    for batch in batches:
        for _ in range(repeats):
            for name, (step, block_size) in made.items():
                load = DecodeLoad(batch, block_size, PROMPT_LEN + steps + 2, vocab)
                step(load.prefill())
                step(load.decode(PROMPT_LEN))
                prepared = [load.decode(PROMPT_LEN + 1 + index) for index in range(steps)]
                started = time.perf_counter()
                for one in prepared:
                    step(one)
                rates[name][batch].append(batch * steps / (time.perf_counter() - started))
    return {
        name: {
            str(batch): {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for batch, values in by_batch.items()
        }
        for name, by_batch in rates.items()
    }


def parse_options(text: str) -> tuple[str, dict[str, Any]]:
    """`name=key:value,key:value` -> name and keyword arguments of the executor."""
    name, _, rest = text.partition("=")
    options: dict[str, Any] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition(":")
        options[key] = {"true": True, "false": False}.get(value, int(value) if value.isdigit() else value)
    return name, options


def table(results: dict[str, Any], batches: list[int]) -> str:
    """Medians, one row a variant."""
    lines = ["| variant | " + " | ".join(f"{batch} seq" for batch in batches) + " |", "|---" * (len(batches) + 1) + "|"]
    for name, by_batch in results.items():
        cells = (f"{by_batch[str(batch)]['median']:.0f} ({by_batch[str(batch)]['max']:.0f})" for batch in batches)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--variant", action="append", default=[], help="NAME=key:value,... executor arguments")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--steps", type=int, default=48, help="timed decode steps a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=1000, help="token ids are drawn below this")
    parser.add_argument("--no-bound", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    variants = []
    for graph in asked.graphs:
        label = f"{graph.parent.name}/{graph.stem} " if len(asked.graphs) > 1 else ""
        for name, options in map(parse_options, asked.variant or ["default"]):
            variants.append(executor_variant(label + name, graph, options))
            if not asked.no_bound:
                for bound, only in (("matmuls+rest", False), ("matmuls", True)):
                    variants.append(bound_variant(f"{label}{name} {bound}", graph, options, matmuls_only=only))
    results = measure(variants, asked.batch, asked.steps, asked.repeats, asked.vocab)
    print(table(results, asked.batch))
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
