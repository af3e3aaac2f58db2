"""Ours in process: the serving loop without a server. usage: trtdecode_peer.py VERSION_DIR THREADS [bound] [NAME=VALUE]

NAME=VALUE are parameters of config.pbtxt. With `bound`: the executor's matrix products alone at the same batch, which
is what no serving loop on this executor can exceed.
"""

from __future__ import annotations

import queue
import sys
from pathlib import Path

from protocol import answer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from executor_speed import DecodeLoad, bound_variant
from own_settings import precision_of, settings
from trtdecode.config import ServingConfig
from trtdecode.executor.factory import create_executor
from trtdecode.manifest import read_manifest
from trtdecode.replica import Replica
from trtdecode.sampling.params import SamplingParams


def loop(version_dir: Path, config: ServingConfig) -> None:
    replica = Replica.load(version_dir, config)

    def generate(prompts: list[list[int]], num_tokens: list[int]) -> int:
        events: queue.SimpleQueue = queue.SimpleQueue()
        for prompt, number in zip(prompts, num_tokens, strict=True):
            params = SamplingParams(temperature=0.0, max_tokens=number, ignore_eos=True)
            replica.submit(replica.samples(prompt, params, on_event=events.put))
        running, total = len(prompts), 0
        while running:
            event = events.get()
            if event.error is not None:
                raise event.error
            total += len(event.token_ids)
            running -= event.is_final
        return total

    answer({"version": "this checkout", "precision": precision_of(replica.executor.describe())}, generate)


def bound(version_dir: Path, config: ServingConfig) -> None:
    manifest = read_manifest(version_dir)
    # The bound must compute as the executor chooses to on this machine.
    executor, _ = create_executor(config, manifest, version_dir, device_kind="CPU", device_id=0)
    facts = executor.describe()
    executor.close()
    options = {"num_threads": config.num_threads, "compute_precision": facts["compute_precision"]}
    variant = bound_variant("matmuls", version_dir / facts["graph"], options, matmuls_only=True)
    step, block_size = variant.make()

    def generate(prompts: list[list[int]], num_tokens: list[int]) -> int:
        load = DecodeLoad(len(prompts), block_size, len(prompts[0]) + max(num_tokens), manifest.spec.vocab_size)
        step(load.prefill())
        for position in range(max(num_tokens) - 1):
            step(load.decode(len(prompts[0]) + position))
        return sum(num_tokens)

    answer({"version": "this checkout", "precision": f"{precision_of(facts)}, matrix products alone"}, generate)


if __name__ == "__main__":
    more = sys.argv[3:]
    chosen = settings(int(sys.argv[2]), [text for text in more if text != "bound"])
    (bound if "bound" in more else loop)(Path(sys.argv[1]), ServingConfig.from_parameters(chosen))
