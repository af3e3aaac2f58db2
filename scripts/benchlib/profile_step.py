"""Where a decode step's time goes, with the real model: `scripts/bench profile [VERSION_DIR] [--set NAME=VALUE]`.

The plain loop (`overlap: false`) runs on the real executor, so that stages follow one another and their wall times add
up to the step; the overlapped loop hides all but `sample` and `update` behind the executor. Sending is what the
sender's thread does up to the server's own call: merging deltas and making tensors. What Triton's call takes is the
difference between `trtdecode` and `trtdecode-triton` in `scripts/bench serving`.

    intake      arrivals, cancellations, deadlines
    schedule    the next step's tokens and blocks
    build       the arrays of the batch
    execute     the executor (below by kind of operator, from OpenVINO's own counters in a run of their own)
    sample      a token a row
    update      tokens, stop conditions, full blocks published
    detokenise  text of the new tokens, stop strings
    emit        events to the responder
    other       recorder, metrics, the step itself
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from executor_speed import DecodeLoad
from stopwatch import Stopwatch
from trtdecode.config import ServingConfig
from trtdecode.executor.openvino_executor import OpenVinoExecutor
from trtdecode.manifest import read_manifest
from trtdecode.replica import Replica
from trtdecode.request import TokenEvent
from trtdecode.responder import Responder
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.output import TextOutput

STAGES = ("intake", "schedule", "build", "execute", "sample", "update", "detokenise", "emit", "other")
SAMPLING = {
    "greedy": {"temperature": 0.0},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "penalties": {"temperature": 0.8, "top_k": 50, "repetition_penalty": 1.1},
}


class OneModel:
    """A replica whose loop is timed. Each `run` decodes a batch of equal length to its end."""

    def __init__(self, version_dir: Path, config: ServingConfig) -> None:
        self.replica = Replica.load(version_dir, config)
        self._loop: Any = self.replica._loop
        self._watch = Stopwatch(STAGES, time.perf_counter)
        self._push = TextOutput.push
        for owner, method, stage in (
            (self._loop, "_intake", "intake"),
            (self._loop.scheduler, "schedule", "schedule"),
            (self._loop, "_build", "build"),
            (self._loop, "_execute", "execute"),
            (self._loop._sampler, "sample", "sample"),
            (self._loop, "_apply", "update"),
            (TextOutput, "push", "detokenise"),
            (self._loop._emitter, "flush", "emit"),
            (self._loop, "step", "other"),
        ):
            self._watch.wrap(owner, method, stage)
        self._time_steps()

    def _time_steps(self) -> None:
        step = self._loop.step

        def counted() -> bool:
            self._watch.begin_step()
            is_busy: bool = step()
            return is_busy

        self._loop.step = counted

    def run(self, num_seqs: int, num_prompt: int, num_tokens: int, sampling: dict[str, float]) -> dict[str, float]:
        """Median microseconds of every stage over the steps in which all sequences decode."""
        random = np.random.default_rng(0)
        params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=1, **sampling)
        finals: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        self._watch.steps.clear()
        for _ in range(num_seqs):
            prompt = random.integers(100, self.replica.spec.vocab_size - 100, num_prompt).tolist()
            responder = Responder(num_samples=1, stream=True)

            def on_event(event: TokenEvent, responder: Responder = responder) -> None:
                responder.push(event)
                if event.is_final:
                    finals.put(event)
                elif responder.is_ready:
                    responder.take()

            self.replica.submit(self.replica.samples(prompt, params, on_event=on_event))
        for _ in range(num_seqs):
            error = finals.get().error
            if error is not None:
                raise error
        # Prefill comes first and takes longer; the last steps have fewer rows.
        steps = self._watch.steps[-num_tokens + 4 : -4]
        return {stage: statistics.median(step[stage] for step in steps) * 1e6 for stage in STAGES}

    def close(self) -> None:
        self.replica.close()
        TextOutput.push = self._push  # type: ignore[method-assign]


def operator_shares(version_dir: Path, facts: Mapping[str, str], num_seqs: int, num_past: int) -> dict[str, float]:
    """Kind of operator -> its share of the executor's time in a decode step, from OpenVINO's counters.

    Args:
        facts: `describe()` of the executor to look into.
    """
    vocab_size = read_manifest(version_dir).spec.vocab_size
    executor = OpenVinoExecutor(
        version_dir / facts["graph"],
        kv_cache_bytes=1 << 30,
        kv_cache_precision=facts["kv_cache_precision"],
        compute_precision=facts["compute_precision"],
        num_threads=int(facts["threads"]),
        count_operators=True,
    )
    times: dict[str, list[float]] = {}
    load = DecodeLoad(num_seqs, executor.block_size, num_past + 16, vocab_size)
    executor.execute(load.prefill())
    for step in range(12):
        executor.execute(load.decode(num_past + step))
        for kind, seconds in executor.operator_seconds(num_seqs).items():
            times.setdefault(kind, []).append(seconds)
    executor.close()
    medians = {kind: statistics.median(values) for kind, values in times.items()}
    total = sum(medians.values())
    return {kind: value / total for kind, value in sorted(medians.items(), key=lambda item: -item[1])}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version_dir", type=Path)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--sampling", nargs="+", choices=SAMPLING, default=["greedy", "top_p"])
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="parameters of config.pbtxt")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    parameters = {"overlap": "false", "enable_prefix_caching": "false", "kv_cache_bytes": "1GiB"}
    parameters |= dict(text.split("=", 1) for text in asked.set)
    config = ServingConfig.from_parameters(parameters)
    model = OneModel(asked.version_dir, config)
    print(model.replica.describe())
    result: dict[str, Any] = {"stages_us": {}, "operators": {}}
    print("\nmicroseconds a step, and the share of it\n")
    print(f"{'sequences':>9} {'sampling':>10} " + " ".join(f"{stage:>14}" for stage in STAGES) + f" {'step':>8}")
    for num_seqs in asked.sequences:
        for name in asked.sampling:
            row = model.run(num_seqs, asked.prompt_tokens, asked.tokens, SAMPLING[name])
            total = sum(row.values())
            cells = " ".join(f"{value:7.0f} {value / total:6.1%}" for value in row.values())
            print(f"{num_seqs:>9} {name:>10} {cells} {total:8.0f}")
            result["stages_us"].setdefault(str(num_seqs), {})[name] = row
    facts = model.replica.executor.describe()
    model.close()
    print("\nthe executor's time by kind of operator")
    for num_seqs in asked.sequences:
        shares = operator_shares(asked.version_dir, facts, num_seqs, asked.prompt_tokens + asked.tokens // 2)
        result["operators"][str(num_seqs)] = shares
        print(f"{num_seqs:>9} " + ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items() if share > 0.005))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
