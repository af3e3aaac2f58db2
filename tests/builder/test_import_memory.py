"""An import streams the weights: its memory does not grow with the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

HIDDEN, INNER, VOCAB, HEAD_DIM = 1024, 4096, 8192, 128
LIMIT = 1.3  # of the checkpoint's size, Python and its libraries included

PROGRAM = """
import re, sys
from pathlib import Path
from trtbuild.pipeline import import_checkpoint
import_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), precisions=(sys.argv[3],))
# Not getrusage: its maximum is inherited from the process that started this one.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of 0.23 GB in bfloat16."""
    folder = tmp_path_factory.mktemp("large")
    noise = np.random.default_rng(0).standard_normal(1 << 20, np.float32).astype(ml_dtypes.bfloat16)
    shapes = {"model.embed_tokens": (VOCAB, HIDDEN), "lm_head": (VOCAB, HIDDEN), "model.norm": (HIDDEN,)}
    for layer in range(6):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{name}.mlp.{part}_proj": (INNER, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj": (HIDDEN, INNER)}
        shapes |= {f"{name}.{part}_layernorm": (HIDDEN,) for part in ("input", "post_attention")}
    weights = {f"{name}.weight": np.resize(noise, shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 6,
        "num_attention_heads": HIDDEN // HEAD_DIM,
        "num_key_value_heads": HIDDEN // HEAD_DIM,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


@pytest.mark.parametrize("precision", ["int8", "f32"])
def test_memory_of_an_import(checkpoint: Path, precision: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(checkpoint), str(tmp_path / "model"), precision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    size = (checkpoint / "model.safetensors").stat().st_size
    assert size > 225e6
    assert 50e6 < int(done.stdout) < LIMIT * size
