"""Ours in process: the serving loop without a server. usage: trtdecode_peer.py VERSION_DIR THREADS

With `bound` as a third argument: the executor's matrix products alone at the same batch, which is what no serving loop
on this executor can exceed.
"""

from __future__ import annotations

import queue
import sys
from pathlib import Path

from protocol import answer


def loop(version_dir: Path, threads: int) -> None:
    from trtdecode.config import ServingConfig
    from trtdecode.replica import Replica
    from trtdecode.sampling.params import SamplingParams

    config = ServingConfig(kv_cache_bytes=2 << 30, num_threads=threads, enable_prefix_caching=False)
    replica = Replica.load(version_dir, config)

    def generate(prompts: list[list[int]], num_tokens: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        events: queue.SimpleQueue = queue.SimpleQueue()
        for prompt in prompts:
            replica.submit(replica.samples(prompt, params, on_event=events.put))
        running, total = len(prompts), 0
        while running:
            event = events.get()
            if event.error is not None:
                raise event.error
            total += len(event.token_ids)
            running -= event.is_final
        return total

    facts = replica.executor.describe()
    names = {"kv_cache_precision": "KV", "compute_precision": "compute"}
    precision = ", ".join(f"{facts[name]} {word}" for name, word in names.items() if name in facts)
    answer({"version": "this checkout", "precision": precision}, generate)


def bound(version_dir: Path, threads: int) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from executor_speed import DecodeLoad, bound_variant
    from trtdecode.config import ServingConfig
    from trtdecode.executor.factory import create_executor
    from trtdecode.manifest import read_manifest

    manifest = read_manifest(version_dir)
    precision = next(name for name in ("int8", "int4", "f32") if name in manifest.graphs)
    # The bound must compute as the executor chooses to on this machine.
    config = ServingConfig(kv_cache_bytes=1 << 26, num_threads=threads)
    executor, _ = create_executor(config, manifest, version_dir, device_kind="CPU", device_id=0)
    options = {"num_threads": threads, "compute_precision": executor.describe()["compute_precision"]}
    executor.close()
    variant = bound_variant("matmuls", version_dir / manifest.graph_file(precision), options, matmuls_only=True)
    step, block_size = variant.make()

    def generate(prompts: list[list[int]], num_tokens: int) -> int:
        load = DecodeLoad(len(prompts), block_size, len(prompts[0]) + num_tokens, manifest.spec.vocab_size)
        step(load.prefill())
        for position in range(num_tokens - 1):
            step(load.decode(len(prompts[0]) + position))
        return len(prompts) * num_tokens

    answer({"version": "this checkout", "precision": f"{precision} weights, matrix products alone"}, generate)


if __name__ == "__main__":
    (bound if sys.argv[3:] == ["bound"] else loop)(Path(sys.argv[1]), int(sys.argv[2]))
