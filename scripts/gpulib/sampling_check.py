"""Tokens chosen on the GPU against the numpy reference: the same ids, or the device's arithmetic is not IEEE's."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from trtdecode.executor.base import SAMPLING_ROW
from trtdecode.executor.torch_sampling import choose, fields_of
from trtdecode.sampling import philox, stages
from trtdecode.sampling.params import SamplingParams

NUM_ROWS, VOCAB_SIZE = 64, 128_256
PARAMS = (
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=50),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.5, min_p=0.02, top_k=1000, top_p=0.99),
)


def on_cuda() -> dict[str, Any]:
    return compare("cuda:0", NUM_ROWS, VOCAB_SIZE)


def compare(device: str, num_rows: int, vocab_size: int) -> dict[str, Any]:
    """Raises AssertionError naming the first row that differs."""
    logits = np.random.default_rng(0).normal(0, 3, (num_rows, vocab_size)).astype(np.float32)
    logits[::2] = np.round(logits[::2] * 4) / 4  # many equal ones: every cut falls among ties
    rows = np.zeros(num_rows, SAMPLING_ROW)
    wanted = []
    for index in range(num_rows):
        params = PARAMS[index % len(PARAMS)]
        limit = float(stages.min_p_limit(params)) if params.min_p else -np.inf
        rows[index] = (index, 0, 7, params.top_k, params.top_p, params.temperature, limit)
        wanted.append(stages.choose(logits[index], params, philox.uniform(index, 0, 7)))
    on_device = torch.from_numpy(logits).to(device)
    fields = fields_of(torch.from_numpy(rows.view(np.uint8).reshape(num_rows, -1)).to(device))
    argmax = on_device.argmax(1)
    got = choose(on_device, argmax, fields).tolist()
    for index, (mine, reference) in enumerate(zip(got, wanted, strict=True)):
        assert mine == reference, f"row {index} ({PARAMS[index % len(PARAMS)]}): token {mine}, reference {reference}"
    began = time.perf_counter()
    choose(on_device, argmax, fields).cpu()
    return {"rows": num_rows, "vocab_size": vocab_size, "milliseconds": round((time.perf_counter() - began) * 1e3, 3)}
