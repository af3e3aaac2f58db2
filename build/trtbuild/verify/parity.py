"""Does stage n say what stage n-1 said? Compares the logits of two graphs on the same ragged batch.

The first stage is the checkpoint itself (transformers, where installed: see `checkpoint_logits`), then the f32 graph,
then each quantised one.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from trtdecode.executor.base import Batch, Executor
from trtdecode.manifest import Manifest, read_manifest

Logits = npt.NDArray[np.float32]
MakeExecutor = Callable[[Path], Executor]

PARITY_FILE = "parity.json"

#: Used where the version has a tokenizer; random ids are added in any case.
SAMPLE_TEXTS = (
    "The capital of France is Paris, which lies on the Seine.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "In 1969, 2 astronauts walked on the Moon; 384,400 km from home.",
)


@dataclass(frozen=True, slots=True)
class Parity:
    """How far `candidate` is from `reference` over `num_rows` positions."""

    reference: str
    candidate: str
    num_rows: int
    max_abs_error: float  # of logits
    mean_abs_error: float
    kl_divergence: float  # mean over positions of KL(reference || candidate), in nats
    argmax_agreement: float  # share of positions with the same most likely token


def compare_logits(reference: Logits, candidate: Logits, names: tuple[str, str]) -> Parity:
    """Figures for two logit matrices [rows, vocab] of the same positions."""
    if reference.shape != candidate.shape:
        raise ValueError(f"logits of {names[0]} are {reference.shape}, of {names[1]} {candidate.shape}")
    error = np.abs(reference.astype(np.float64) - candidate)
    log_p, log_q = _log_softmax(reference), _log_softmax(candidate)
    return Parity(
        reference=names[0],
        candidate=names[1],
        num_rows=len(reference),
        max_abs_error=float(error.max()),
        mean_abs_error=float(error.mean()),
        kl_divergence=float((np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()),
        argmax_agreement=float((reference.argmax(axis=1) == candidate.argmax(axis=1)).mean()),
    )


def graph_logits(executor: Executor, prompts: Sequence[Sequence[int]]) -> Logits:
    """Logits of every position of every prompt, [sum of lengths, vocab], computed as one ragged batch."""
    result = executor.execute(_prefill(prompts, executor.block_size))
    assert result.logits is not None
    return np.array(result.logits)


def checkpoint_logits(source: Path, prompts: Sequence[Sequence[int]]) -> Logits:
    """The same from transformers on the checkpoint. Raises ImportError without torch and transformers."""
    import torch
    import transformers

    names = {"gguf_file": source.name} if source.suffix == ".gguf" else {}
    folder = source.parent if names else source
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **names).eval()
    with torch.inference_mode():
        rows = [model(torch.tensor([list(prompt)])).logits[0].numpy() for prompt in prompts]
    return np.concatenate(rows)


def verify_version(version_dir: Path, make_executor: MakeExecutor, *, source: Path | None = None) -> list[Parity]:
    """Compares each graph of a version with the stage before it and writes `reports/parity.json`.

    Args:
        make_executor: graph path -> executor in float32.
        source: the checkpoint; with it the first graph is compared with transformers.
    """
    manifest = read_manifest(version_dir)
    prompts = sample_prompts(version_dir, manifest)
    before = None if source is None else ("checkpoint", checkpoint_logits(source, prompts))
    figures = []
    for precision in sorted(manifest.graphs, key=lambda name: (name != "f32", name)):
        executor = make_executor(version_dir / manifest.graphs[precision])
        try:
            logits = graph_logits(executor, prompts)
        finally:
            executor.close()
        if before is not None:
            figures.append(compare_logits(before[1], logits, (before[0], precision)))
        if before is None or precision == "f32":
            before = (precision, logits)
    _write_report(version_dir, figures)
    return figures


def sample_prompts(version_dir: Path, manifest: Manifest) -> list[list[int]]:
    """A few prompts of unequal length: sample texts where there is a tokenizer, and seeded random ids."""
    random = np.random.default_rng(0)
    longest = min(33, manifest.spec.max_context_len)
    prompts = [random.integers(0, manifest.spec.vocab_size, length).tolist() for length in (1, 7, longest)]
    tokenizer_file = version_dir / "tokenizer.json"
    if tokenizer_file.is_file():
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        prompts += [tokenizer.encode(text).ids[: manifest.spec.max_context_len] for text in SAMPLE_TEXTS]
    return prompts


def _prefill(prompts: Sequence[Sequence[int]], block_size: int) -> Batch:
    """All prompts from their first token, each in blocks of its own; block 0 stays unused."""
    lengths = [len(prompt) for prompt in prompts]
    blocks = [-(-length // block_size) for length in lengths]
    return Batch(
        input_ids=np.concatenate([np.asarray(prompt, np.int64) for prompt in prompts]),
        positions=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        past_lens=np.zeros(len(prompts), np.int32),
        query_begins=np.cumsum([0, *lengths]).astype(np.int32),
        block_indices=np.arange(1, 1 + sum(blocks), dtype=np.int32),
        block_begins=np.cumsum([0, *blocks]).astype(np.int32),
        max_context_len=max(lengths),
        logit_indices=np.arange(sum(lengths), dtype=np.int64),
    )


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))  # type: ignore[no-any-return]


def _write_report(version_dir: Path, figures: list[Parity]) -> None:
    reports = version_dir / "reports"
    reports.mkdir(exist_ok=True)
    facts = [dataclasses.asdict(parity) for parity in figures]
    (reports / PARITY_FILE).write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
