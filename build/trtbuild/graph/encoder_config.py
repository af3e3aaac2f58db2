"""What an encoder family needs to know of a model, and how its output is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtdecode.errors import CheckpointError, UnsupportedError
from trtdecode.manifest import SCORE_ACTIVATIONS, ModelSpec

from trtbuild.checkpoint.sentence_files import SENTENCE_KEY
from trtbuild.graph.config import RawConfig, required, token_ids

POOLINGS = ("cls", "mean", "max")


@dataclass(frozen=True)
class EncoderConfig:
    """Facts that all encoder families share."""

    family: str
    task: str  # "embed", "rerank" or "classify"
    num_layers: int
    hidden_size: int
    inner_size: int
    num_heads: int
    vocab_size: int
    num_positions: int  # the longest text the model was trained for
    max_context_len: int  # the longest text it is served with
    norm_epsilon: float
    activation: str
    labels: tuple[str, ...]  # names of the scores; () for embed
    score_activation: str  # of rerank and classify: what makes shares of the scores
    num_token_types: int
    pooling: str  # of embed: one of POOLINGS
    normalize: bool  # of embed: the vector has length 1
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    raw: RawConfig

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def spec(self) -> ModelSpec:
        """What serving keeps of it."""
        return ModelSpec(
            family=self.family,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_context_len=self.max_context_len,
            sliding_windows=(0,) * self.num_layers,
            bos_token_id=self.bos_token_id,
            eos_token_ids=self.eos_token_ids,
            task=self.task,
            labels=self.labels if self.task == "classify" else (),
            score_activation=self.score_activation,
            num_token_types=self.num_token_types,
        )


def bert_like_config(family: str, raw: RawConfig, **changes: Any) -> EncoderConfig:
    """Reads a config that uses BERT's key names. `changes` replace single fields."""
    labels = _labels(raw)
    sentence = raw.get(SENTENCE_KEY) or {}
    num_positions = changes.pop("num_positions", None) or required(raw, "max_position_embeddings")
    fields: dict[str, Any] = {
        "family": family,
        "task": _task(len(labels)),
        "num_layers": required(raw, "num_hidden_layers"),
        "hidden_size": required(raw, "hidden_size"),
        "inner_size": required(raw, "intermediate_size"),
        "num_heads": required(raw, "num_attention_heads"),
        "vocab_size": required(raw, "vocab_size"),
        "num_positions": num_positions,
        "max_context_len": min(num_positions, sentence.get("max_seq_length") or num_positions),
        "norm_epsilon": float(raw.get("layer_norm_eps", 1e-12)),
        "activation": raw.get("hidden_act") or "gelu",
        "labels": labels,
        "score_activation": _score_activation(raw, len(labels)),
        "num_token_types": int(raw.get("type_vocab_size", 2)),
        "pooling": sentence.get("pooling", "mean"),
        "normalize": sentence.get("normalize", False),
        "bos_token_id": raw.get("bos_token_id"),
        "eos_token_ids": token_ids(raw.get("eos_token_id")),
        "raw": raw,
    }
    config = EncoderConfig(**{**fields, **changes})
    if config.pooling not in POOLINGS:
        raise UnsupportedError(f"pooling {config.pooling!r} is not known; known: {', '.join(POOLINGS)}")
    return config


def _labels(raw: RawConfig) -> tuple[str, ...]:
    """The scores' names of a sequence classifier (config.json lists them when there are not two); () for a bare
    encoder."""
    names = raw.get("architectures") or []
    if not any(name.endswith("ForSequenceClassification") for name in names):
        return ()
    listed = raw.get("id2label") or {}
    count = len(listed) or int(raw.get("num_labels") or 2)
    if count < 1:
        raise CheckpointError("config.json: a sequence classifier without labels")
    return tuple(str(listed.get(str(index), f"LABEL_{index}")) for index in range(count))


def _score_activation(raw: RawConfig, num_labels: int) -> str:
    """sentence-transformers' setting where there is one, else as transformers and it do by default: softmax over labels
    of which one is true, sigmoid of a single score and of labels that may be true together."""
    if not num_labels:
        return ""
    named = (raw.get(SENTENCE_KEY) or {}).get("activation_fn") or raw.get("sbert_ce_default_activation_function")
    if named:
        kind = str(named).rpartition(".")[2].lower()
        if kind not in SCORE_ACTIVATIONS:
            raise UnsupportedError(f"activation {named!r} is not known; known: {', '.join(SCORE_ACTIVATIONS)}")
        return kind
    if raw.get("problem_type") == "regression":
        return "identity"
    return "sigmoid" if num_labels == 1 or raw.get("problem_type") == "multi_label_classification" else "softmax"


def _task(num_labels: int) -> str:
    return {0: "embed", 1: "rerank"}.get(num_labels, "classify")
