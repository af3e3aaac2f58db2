"""Peer: OpenVINO GenAI's continuous batching in process.

usage: openvino_genai_peer.py MODEL.gguf THREADS [prefix-caching] [max-num-seqs=N]
"""

from __future__ import annotations

import sys

import numpy as np
import openvino as ov
import openvino_genai as genai
from protocol import answer


class GenAI:
    """One pipeline; every request of a run enters at once, as token ids."""

    def __init__(self, path: str, threads: int, prefix_caching: bool, max_num_seqs: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_seqs = max_num_seqs
        scheduler.max_num_batched_tokens = 512
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = prefix_caching  # off where the same prompts come again in every repeat
        self.pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> int:
        inputs = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self.pipeline.generate(inputs, [self.config(number) for number in num_tokens])
        return sum(len(result.m_generation_ids[0]) for result in results)

    def config(self, num_tokens: int) -> genai.GenerationConfig:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        return config


if __name__ == "__main__":
    more = sys.argv[3:]
    number = next((int(text.split("=")[1]) for text in more if text.startswith("max-num-seqs=")), 64)
    model = GenAI(sys.argv[1], int(sys.argv[2]), "prefix-caching" in more, number)
    answer(
        {"version": genai.__version__, "precision": "its defaults for this GGUF on this CPU; it does not report them"},
        model.generate,
    )
