"""The tiny decoder again in plain numpy, float64, whole sequences, no cache: what every executor must agree with."""

from __future__ import annotations

import numpy as np
from conformance.tiny_graph import TinySpec, TinyWeights


class NumpyDecoder:
    """Logits of whole sequences. Shares only the weights with the graph."""

    def __init__(self, spec: TinySpec) -> None:
        self.spec = spec
        self.weights = {name: array.astype(np.float64) for name, array in TinyWeights(spec).by_name.items()}

    def logits(self, token_ids: list[int]) -> np.ndarray:
        """[len(token_ids), vocab_size], one row a position."""
        weights = self.weights
        hidden = weights["embedding"][token_ids]
        for layer in range(self.spec.num_layers):
            qkv = _rms(hidden, weights[f"norm1.{layer}"]) @ weights[f"qkv.{layer}"]
            hidden = hidden + self._attention(qkv) @ weights[f"out.{layer}"]
            gate_up = _rms(hidden, weights[f"norm2.{layer}"]) @ weights[f"gate_up.{layer}"]
            gate, up = np.split(gate_up, 2, axis=-1)
            hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"down.{layer}"]
        return _rms(hidden, weights["norm"]) @ weights["head"]

    def greedy(self, prompt: list[int], num_tokens: int) -> list[int]:
        """The ids that greedy decoding appends."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[len(prompt) :]

    def _attention(self, qkv: np.ndarray) -> np.ndarray:
        spec, length = self.spec, len(qkv)
        query, key, value = np.split(qkv, [spec.hidden_size, spec.hidden_size + spec.kv_size], axis=-1)
        query = query.reshape(length, spec.num_heads, spec.head_dim)
        key = key.reshape(length, spec.num_kv_heads, spec.head_dim)
        value = value.reshape(length, spec.num_kv_heads, spec.head_dim)
        if not spec.alibi_slopes:
            query, key = self._rope(query), self._rope(key)
        output = np.empty_like(query)
        for head in range(spec.num_heads):
            kv_head = head // (spec.num_heads // spec.num_kv_heads)
            for position in range(length):
                first = max(0, position - spec.sliding_window + 1) if spec.sliding_window else 0
                seen = slice(first, position + 1)
                scores = key[seen, kv_head] @ query[position, head] / np.sqrt(spec.head_dim)
                if spec.softcap:
                    scores = spec.softcap * np.tanh(scores / spec.softcap)
                if spec.alibi_slopes:
                    scores = scores - spec.alibi_slopes[head] * (position - np.arange(first, position + 1))
                weights = np.exp(scores - scores.max())
                output[position, head] = weights / weights.sum() @ value[seen, kv_head]
        return output.reshape(length, spec.hidden_size)

    def _rope(self, heads: np.ndarray) -> np.ndarray:
        cos = self.weights["cos"][: len(heads), None]
        sin = self.weights["sin"][: len(heads), None]
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _rms(hidden: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + 1e-5) * scale
