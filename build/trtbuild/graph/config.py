"""What a decoder family needs to know of a model, read from Hugging Face's config once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtdecode.errors import CheckpointError
from trtdecode.manifest import ModelSpec

from trtbuild.graph.rope_frequencies import LONGROPE_NAMES, RopeConfig, rope_from_config
from trtbuild.graph.share import Share, even_share, kv_head_share

RawConfig = Mapping[str, Any]


@dataclass(frozen=True)
class DecoderConfig:
    """Facts that all decoder families share; what is peculiar to one stays in `raw`, for its own file."""

    family: str
    num_layers: int
    hidden_size: int
    inner: Share  # units of the MLP
    heads: Share
    kv_heads: Share
    head_dim: int
    vocab_size: int
    max_context_len: int
    norm_epsilon: float
    activation: str
    attention_scale: float  # of q . k
    sliding_windows: tuple[int, ...]  # one a layer: keys a token sees, itself included; 0 means all
    tied_head: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    rope: RopeConfig | None
    raw: RawConfig
    softcap: float = 0.0  # attention scores become softcap * tanh(score / softcap); 0 means off
    alibi_slopes: tuple[float, ...] = ()  # one a head: scores lose slope * distance; empty means off

    @property
    def num_heads(self) -> int:
        """Of this rank."""
        return self.heads.size

    @property
    def num_kv_heads(self) -> int:
        """Of this rank."""
        return self.kv_heads.size

    @property
    def query_rows(self) -> Share:
        """Rows of the query projection: num_heads * head_dim."""
        return self.heads.times(self.head_dim)

    @property
    def kv_rows(self) -> Share:
        """Rows of the key projection, and of the value projection: num_kv_heads * head_dim."""
        return self.kv_heads.times(self.head_dim)

    @property
    def qkv_rows(self) -> Share:
        """Rows of Q, K and V in one matrix, in this order."""
        return Share.joined(self.query_rows, self.kv_rows, self.kv_rows)

    def for_rank(self, rank: int, num_ranks: int) -> DecoderConfig:
        """The part that one of `num_ranks` tensor-parallel ranks computes.

        Raises:
            UnsupportedError: heads, KV heads or inner units do not divide by the number of ranks.
        """
        heads = even_share("attention heads", self.heads.full, rank, num_ranks)
        ((first, last),) = heads.ranges
        return dataclasses.replace(
            self,
            inner=even_share("inner units of the MLP", self.inner.full, rank, num_ranks),
            heads=heads,
            kv_heads=kv_head_share(self.kv_heads.full, rank, num_ranks),
            alibi_slopes=self.alibi_slopes[first:last],
        )

    @property
    def spec(self) -> ModelSpec:
        """What serving keeps of it."""
        return ModelSpec(
            family=self.family,
            num_layers=self.num_layers,
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab_size,
            max_context_len=self.max_context_len,
            sliding_windows=self.sliding_windows,
            bos_token_id=self.bos_token_id,
            eos_token_ids=self.eos_token_ids,
        )


def required(raw: RawConfig, key: str) -> Any:
    """A key of the config that must be there. Raises CheckpointError naming it."""
    value = raw.get(key)
    if value is None:
        raise CheckpointError(f"config.json: key {key!r} is missing; the checkpoint's config is incomplete")
    return value


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """A config's eos_token_id: one id, a list or null."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def rope_parameters(raw: RawConfig) -> tuple[float, Mapping[str, Any]]:
    """Theta and scaling, from transformers 5's `rope_parameters` or the older `rope_theta` and `rope_scaling`."""
    parameters = raw.get("rope_parameters") or {}
    scaling = parameters or raw.get("rope_scaling") or {}
    theta = parameters.get("rope_theta") or raw.get("rope_theta") or 10000.0
    original = raw.get("original_max_position_embeddings")
    if scaling and original is not None:
        scaling = {"original_max_position_embeddings": original, **scaling}
    return float(theta), scaling


def context_limit(raw: RawConfig, scaling: Mapping[str, Any]) -> int:
    """Tokens the model may see: with LongRoPE the original length, because one cache has one set of frequencies."""
    limit = required(raw, "max_position_embeddings")
    if scaling.get("rope_type", scaling.get("type")) in LONGROPE_NAMES:
        return int(scaling.get("original_max_position_embeddings") or limit)
    return int(limit)


def sliding_windows(raw: RawConfig, num_layers: int) -> tuple[int, ...]:
    """One window a layer.

    `sliding_window` null or `use_sliding_window` false means full attention whatever else the config says;
    `layer_types` decides by layer where present; else Qwen's `max_window_layers` keeps the first layers full.
    """
    window = raw.get("sliding_window")
    if window is None or raw.get("use_sliding_window") is False:
        return (0,) * num_layers
    types = raw.get("layer_types")
    if types is not None:
        if len(types) != num_layers:
            raise CheckpointError(f"config.json: layer_types has {len(types)} entries for {num_layers} layers")
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    first = raw.get("max_window_layers", 0) if raw.get("use_sliding_window") else 0
    return tuple(window if layer >= first else 0 for layer in range(num_layers))


def make_config(
    family: str,
    raw: RawConfig,
    *,
    num_layers: int,
    hidden_size: int,
    inner_size: int,
    num_heads: int,
    tied_default: bool,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    sliding_windows: tuple[int, ...] | None = None,
    attention_scale: float | None = None,
    **fields: Any,
) -> DecoderConfig:
    """A DecoderConfig with the usual defaults: one KV head a head, hidden / heads wide, full attention."""
    head_dim = head_dim or hidden_size // num_heads
    return DecoderConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=hidden_size,
        inner=Share.whole(inner_size),
        heads=Share.whole(num_heads),
        kv_heads=Share.whole(num_kv_heads or num_heads),
        head_dim=head_dim,
        vocab_size=required(raw, "vocab_size"),
        attention_scale=head_dim**-0.5 if attention_scale is None else attention_scale,
        sliding_windows=sliding_windows or (0,) * num_layers,
        tied_head=bool(raw.get("tie_word_embeddings", tied_default)),
        bos_token_id=raw.get("bos_token_id"),
        eos_token_ids=token_ids(raw.get("eos_token_id")),
        raw=raw,
        **fields,
    )


def llama_like_config(family: str, raw: RawConfig, *, tied_default: bool = False, **changes: Any) -> DecoderConfig:
    """Reads a config that uses Llama's key names: most RMSNorm families. `changes` replace single fields."""
    num_heads, num_layers = required(raw, "num_attention_heads"), required(raw, "num_hidden_layers")
    hidden_size = required(raw, "hidden_size")
    head_dim = raw.get("head_dim") or hidden_size // num_heads
    max_context_len = required(raw, "max_position_embeddings")
    theta, scaling = rope_parameters(raw)
    fields: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "inner_size": required(raw, "intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": raw.get("num_key_value_heads"),
        "head_dim": head_dim,
        "max_context_len": context_limit(raw, scaling),
        "norm_epsilon": float(required(raw, "rms_norm_eps")),
        "activation": raw.get("hidden_act") or "silu",
        "sliding_windows": sliding_windows(raw, num_layers),
        "rope": rope_from_config(theta, rotary_dim(raw, scaling, head_dim), scaling, max_context_len),
    }
    return make_config(family, raw, tied_default=tied_default, **{**fields, **changes})


def rotary_dim(raw: RawConfig, scaling: RawConfig, head_dim: int, default: float = 1.0) -> int:
    """How many dimensions of a head rotate, from `partial_rotary_factor` wherever the config keeps it."""
    factor = scaling.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or default
    return int(head_dim * factor)
