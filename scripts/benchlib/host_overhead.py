"""What the loop itself costs a step, without a model: `python scripts/benchlib/host_overhead.py [--json FILE]`.

The executor waits without using the CPU, as a GPU would make the host wait. All sequences have a context of 2,048
tokens and decode one token a step; every one of them wants text. Stages, in microseconds of CPU time a step (median;
CPU time, because a busy machine would make wall time the scheduler's figure, not ours):

    intake      arrivals, cancellations, deadlines
    schedule    the next step's tokens and blocks
    build       the arrays of the batch
    sample      greedy choice from the executor's argmax
    update      tokens, stop conditions, full blocks published
    emit        text outputs and events, without sending (the text output here is a stand-in that joins strings)

"un-overlapped" is what stands between two executor calls in the overlapped loop: sample, update, fill in the tokens,
launch. `gap` is that, measured as wall time from the executor's return to its next call (the lowest tenth's upper
end: the rest is what else the machine was doing).

`core` drives schedule and update alone, back to back, and takes the mean over whole rounds of blocks, so that hashing
is in it. With `--nano-vllm DIR` (a checkout) nano-vllm's scheduler is driven the same way in the same run.

A second table has what sending adds (host_sending.py), with and without `max_send_delay_ms`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from host_sending import measure_sending
from stopwatch import Stopwatch
from trtdecode.config import ServingConfig
from trtdecode.executor.base import Batch, BatchResult
from trtdecode.loop import Loop
from trtdecode.manifest import ModelSpec
from trtdecode.overlap import OverlappedLoop
from trtdecode.request import Request, TokenEvent
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.sampler import Sampler
from trtdecode.sampling.stop import check_token_stop

CONTEXT_LEN = 2048
BLOCK_SIZE = 16
VOCAB_SIZE = 49_152
STAGES = ("intake", "schedule", "build", "sample", "update", "emit")


class WaitingExecutor:
    """Sleeps, and answers with token ids that never end a sequence. Notes how long the host let it wait."""

    name = "waiting"
    block_size = BLOCK_SIZE

    def __init__(self, num_blocks: int, wait_ms: float) -> None:
        self.num_blocks = num_blocks
        self.gaps: list[float] = []
        self._wait_s = wait_ms / 1000
        self._returned: float | None = None

    def execute(self, batch: Batch) -> BatchResult:
        if self._returned is not None:
            self.gaps.append(time.perf_counter() - self._returned)
        time.sleep(self._wait_s)
        argmax = batch.input_ids[batch.logit_indices] % (VOCAB_SIZE - 10) + 5
        self._returned = time.perf_counter()
        return BatchResult(None, argmax)

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


class JoinedText:
    """The cheapest honest text output: one string a token."""

    def push(self, token_ids: Sequence[int]) -> tuple[str, bool]:
        return "".join([f" {token_id}" for token_id in token_ids]), False

    def flush(self) -> str:
        return ""


def no_receiver() -> Callable[[TokenEvent], None]:
    return lambda event: None


def make_loop(
    loop_class: type[Loop],
    num_seqs: int,
    context_len: int,
    wait_ms: float,
    steps: int,
    receiver: Callable[[], Callable[[TokenEvent], None]] = no_receiver,
) -> Loop:
    """A loop whose sequences are all decoding; `receiver` makes each its `on_event`."""
    blocks_a_sequence = -(-(context_len + steps) // BLOCK_SIZE)
    executor = WaitingExecutor(num_seqs * (blocks_a_sequence + 2) + 1, 0.0)
    spec = ModelSpec(
        family="none",
        num_layers=1,
        hidden_size=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        vocab_size=VOCAB_SIZE,
        max_context_len=2 * (context_len + steps),
        sliding_windows=(0,),
        eos_token_ids=(2,),
    )
    config = ServingConfig(max_num_seqs=num_seqs, max_num_batched_tokens=8192, max_queue_size=num_seqs)
    loop = loop_class(executor, Sampler(spec.eos_token_ids), config, spec)
    params = SamplingParams(max_tokens=steps, temperature=0.0)
    for index in range(num_seqs):
        prompt = [(index * 7919 + position) % VOCAB_SIZE for position in range(context_len)]
        loop.submit(
            Request(
                prompt,
                params,
                receiver(),
                seed=0,
                arrival_time=loop.clock(),
                deadline=loop.clock() + 1e6,
                is_cancelled=lambda: False,
                output=JoinedText(),
            )
        )
    while loop.scheduler.waiting or not loop.scheduler.running or loop.scheduler.running[-1].num_output_tokens < 2:
        loop.step()
    executor._wait_s = wait_ms / 1000
    executor.gaps.clear()
    return loop


def measure(num_seqs: int, context_len: int, steps: int, wait_ms: float) -> dict[str, float]:
    """Median microseconds a step of every stage (plain loop), and the executor's idle gap (both loops)."""
    budget = 2 * steps + 8192 // max(1, num_seqs) + 200
    plain = make_loop(Loop, num_seqs, context_len, wait_ms, budget)
    watch = Stopwatch((*STAGES, "execute"))
    watch.wrap(plain, "_intake", "intake")
    watch.wrap(plain.scheduler, "schedule", "schedule")
    watch.wrap(plain._builder, "build", "build")
    watch.wrap(plain._sampler, "sample", "sample")
    watch.wrap(plain._executor, "execute", "execute")
    watch.wrap(plain, "_apply", "update")
    watch.wrap(plain._emitter, "flush", "emit")
    for _ in range(steps):
        watch.begin_step()
        plain.step()
    row = {stage: statistics.median(step[stage] for step in watch.steps) * 1e6 for stage in STAGES}
    row["host"] = statistics.median(sum(step[stage] for stage in STAGES) for step in watch.steps) * 1e6
    row["gap_plain"] = _low_gap(make_loop(Loop, num_seqs, context_len, wait_ms, budget), steps)
    row["gap_overlapped"] = _low_gap(make_loop(OverlappedLoop, num_seqs, context_len, wait_ms, budget), steps)
    return row


def _low_gap(loop: Loop, steps: int) -> float:
    for _ in range(steps):
        loop.step()
    executor = loop._executor
    assert isinstance(executor, WaitingExecutor)
    gap = statistics.quantiles(executor.gaps, n=10)[0] * 1e6
    loop.stop()
    return gap


def measure_core(num_seqs: int, context_len: int, steps: int) -> float:
    """Mean microseconds of CPU time a step: schedule, take in the tokens, publish full blocks. Nothing else."""
    loop = make_loop(Loop, num_seqs, context_len, 0.0, 2 * steps + 8192 // num_seqs + 200)
    scheduler, spent = loop.scheduler, 0.0
    for _ in range(steps):
        began = time.thread_time()
        plan = scheduler.schedule(0.0)
        assert plan is not None and plan.num_tokens == num_seqs
        scheduler.update(plan)
        for request in plan.sampled:
            if request.append(7, 0.0):
                check_token_stop(request, (2,))
        spent += time.thread_time() - began
    return spent / steps * 1e6


def measure_nano_vllm(directory: Path, num_seqs: int, context_len: int, steps: int) -> float:
    """The same for nano-vllm's scheduler, whose modules are loaded from a checkout."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
        # Its package imports the whole engine; three of its modules are enough, and they are plain Python.
        for name in ("nanovllm", "nanovllm.engine"):
            package = types.ModuleType(name)
            package.__path__ = [str(directory / name.replace(".", "/"))]
            sys.modules[name] = package
        config = types.ModuleType("nanovllm.config")
        config.Config = object  # type: ignore[attr-defined]
        sys.modules["nanovllm.config"] = config
    scheduler_module = importlib.import_module("nanovllm.engine.scheduler")
    sequence_class: Any = importlib.import_module("nanovllm.engine.sequence").Sequence
    sampling: Any = importlib.import_module("nanovllm.sampling_params")
    sequence_class.block_size = BLOCK_SIZE
    limits = types.SimpleNamespace(
        max_num_seqs=num_seqs,
        max_num_batched_tokens=8192,
        eos=2,
        kvcache_block_size=BLOCK_SIZE,
        num_kvcache_blocks=num_seqs * (-(-(context_len + 2 * steps) // BLOCK_SIZE) + 2),
    )
    scheduler = scheduler_module.Scheduler(limits)
    for index in range(num_seqs):
        prompt = [(index * 7919 + position) % VOCAB_SIZE for position in range(context_len)]
        scheduler.add(sequence_class(prompt, sampling.SamplingParams(max_tokens=2 * steps)))
    spent, num_decodes = 0.0, 0
    while num_decodes < steps:
        began = time.thread_time()
        sequences, is_prefill = scheduler.schedule()
        scheduler.postprocess(sequences, [7] * len(sequences), is_prefill)
        if not is_prefill:
            spent += time.thread_time() - began
            num_decodes += 1
    return spent / steps * 1e6


def run(
    sizes: Sequence[int], context_len: int, steps: int, wait_ms: float, nano_vllm: Path | None = None
) -> dict[str, dict[str, float]]:
    """All sizes; keys are the numbers of sequences."""
    rounds = -(-steps // BLOCK_SIZE) * BLOCK_SIZE
    results = {}
    for size in sizes:
        row = results[str(size)] = measure(size, context_len, steps, wait_ms)
        row["core"] = measure_core(size, context_len, rounds)
        if nano_vllm is not None:
            row["core_nano_vllm"] = measure_nano_vllm(nano_vllm, size, context_len, rounds)
    return results


def table(results: dict[str, dict[str, float]]) -> str:
    """A row a size: microseconds a step, then the host's total a sequence."""
    columns = list(next(iter(results.values())))
    lines = [f"{'sequences':>9} " + " ".join(f"{name:>14}" for name in columns) + f" {'us/sequence':>12}"]
    for size, row in results.items():
        cells = " ".join(f"{row[name]:14.0f}" for name in columns)
        lines.append(f"{size:>9} {cells} {row['host'] / int(size):12.2f}")
    return "\n".join(lines)


def run_sending(
    sizes: Sequence[int], context_len: int, steps: int, wait_ms: float
) -> dict[str, dict[str, dict[str, float]]]:
    """Sequences -> longest delay asked for in ms -> figures."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for size in sizes:
        for delay_ms in (0.0, ServingConfig().max_send_delay_ms):

            def made(receiver: Callable[[], Callable[[TokenEvent], None]], size: int = size) -> Loop:
                budget = steps + 8192 // size + 200
                return make_loop(OverlappedLoop, size, context_len, wait_ms, budget, receiver)

            results.setdefault(str(size), {})[f"{delay_ms:g}"] = measure_sending(made, steps, delay_ms / 1000)
    return results


def sending_table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    columns = list(next(iter(next(iter(results.values())).values())))
    lines = [f"{'sequences':>9} {'max_send_delay_ms':>17} " + " ".join(f"{name:>18}" for name in columns)]
    for size, by_delay in results.items():
        for delay, row in by_delay.items():
            lines.append(f"{size:>9} {delay:>17} " + " ".join(f"{row[name]:18.1f}" for name in columns))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 128, 256, 512])
    parser.add_argument("--context", type=int, default=CONTEXT_LEN, help="tokens of each sequence")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--wait-ms", type=float, default=10.0, help="how long the executor waits")
    parser.add_argument("--nano-vllm", type=Path, help="a checkout of nano-vllm to compare with (needs xxhash)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args(argv)
    results = run(args.sequences, args.context, args.steps, args.wait_ms, args.nano_vllm)
    print(f"microseconds a step; contexts of {args.context} tokens, executor waits {args.wait_ms:g} ms")
    print(table(results))
    sending = run_sending(args.sequences, args.context, args.steps, args.wait_ms)
    print(sending_table(sending))
    if args.json:
        args.json.write_text(json.dumps(results | {"sending": sending}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
