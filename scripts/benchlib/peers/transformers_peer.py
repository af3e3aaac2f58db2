"""Peer: Hugging Face transformers' generate, one padded batch. usage: transformers_peer.py MODEL.gguf THREADS"""

from __future__ import annotations

import os
import sys

import torch
import transformers
from protocol import answer


class Transformers:
    """The model in f32 (what a CPU runs by default); prompts of a run have one length, so that nothing is padded."""

    def __init__(self, path: str, threads: int) -> None:
        torch.set_num_threads(threads)
        folder, file = os.path.split(path)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        self.model.eval()

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> int:
        """A static batch runs to its longest answer; only the tokens that were asked for count."""
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=max(num_tokens),
                max_new_tokens=max(num_tokens),
                pad_token_id=0,
            )
        return sum(min(number, output.shape[1] - ids.shape[1]) for number in num_tokens)


if __name__ == "__main__":
    model = Transformers(sys.argv[1], int(sys.argv[2]))
    answer({"version": transformers.__version__, "precision": "f32 weights, f32 KV"}, model.generate)
