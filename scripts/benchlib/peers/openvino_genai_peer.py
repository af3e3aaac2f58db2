"""Peer: OpenVINO GenAI's continuous batching in process. usage: openvino_genai_peer.py MODEL.gguf THREADS"""

from __future__ import annotations

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import answer


class GenAI:
    """One pipeline; every request of a run enters at once, as token ids."""

    def __init__(self, path: str, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = 64
        scheduler.max_num_batched_tokens = 512
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False  # the same prompts come again in every repeat
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})

    def generate(self, prompts: list[list[int]], num_tokens: int) -> int:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self.pipeline.generate(inputs, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)


if __name__ == "__main__":
    model = GenAI(sys.argv[1], int(sys.argv[2]))
    answer(
        {"version": genai.__version__, "precision": "its defaults for this GGUF on this CPU; it does not report them"},
        model.generate,
    )
