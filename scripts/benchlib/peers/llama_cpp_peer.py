"""Peer: llama.cpp through its C interface, batched decode. usage: llama_cpp_peer.py MODEL.gguf THREADS"""

from __future__ import annotations

import sys

import llama_cpp
from protocol import answer

MAX_CONTEXT = 2048  # tokens a sequence: the longest prompt of the bench and its answer
BATCH = 512

#: Kept for the life of the process: C calls it.
_SILENT = llama_cpp.llama_log_callback(lambda *_: None)


class LlamaCpp:
    """One context for up to 64 sequences with a unified KV cache, cleared between runs."""

    def __init__(self, path: str, threads: int) -> None:
        llama_cpp.llama_log_set(_SILENT, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        self.threads = threads
        self.contexts: dict[int, object] = {}

    def context(self, num_sequences: int, num_tokens: int) -> object:
        size = num_sequences * num_tokens
        if (num_sequences, size) not in self.contexts:
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = size
            params.n_batch = params.n_ubatch = BATCH
            params.n_seq_max = num_sequences
            params.n_threads = params.n_threads_batch = self.threads
            params.kv_unified = True
            self.contexts = {(num_sequences, size): llama_cpp.llama_init_from_model(self.model, params)}
        return self.contexts[num_sequences, size]

    def generate(self, prompts: list[list[int]], num_tokens: list[int]) -> int:
        length = -(-(max(map(len, prompts)) + max(num_tokens) + 1) // 256) * 256
        context = self.context(len(prompts), length)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        batch = llama_cpp.llama_batch_init(BATCH, 0, len(prompts))
        todo = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        latest: dict[int, int] = {}
        for begin in range(0, len(todo), BATCH):
            latest |= self.decode(context, batch, todo[begin : begin + BATCH])
        for step in range(max(num_tokens) - 1):
            rows = [
                (latest[s], len(prompt) + step, s, True) for s, prompt in enumerate(prompts) if step + 1 < num_tokens[s]
            ]
            latest = self.decode(context, batch, rows)
        llama_cpp.llama_batch_free(batch)
        return sum(num_tokens)

    def decode(self, context: object, batch: object, rows: list[tuple[int, int, int, bool]]) -> dict[int, int]:
        batch.n_tokens = len(rows)
        for index, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = wanted
        status = llama_cpp.llama_decode(context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        return {row[2]: self.argmax(context, index) for index, row in enumerate(rows) if row[3]}

    def argmax(self, context: object, index: int) -> int:
        """Greedy over one row, in numpy: llama.cpp's own greedy sampler is slower from Python."""
        import numpy as np

        vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, index), shape=(vocab,))
        return int(logits.argmax())


if __name__ == "__main__":
    model = LlamaCpp(sys.argv[1], int(sys.argv[2]))
    answer({"version": llama_cpp.__version__, "precision": "Q4_1 weights, f16 KV"}, model.generate)
