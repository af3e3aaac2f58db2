"""Tensors of encoder models: Triton request -> `EncoderCall`, rows -> outputs. Knows names and shapes; not the server.

Every tensor has the batch dimension k in front: one request may hold several texts, and Triton's dynamic batcher
puts many requests into one `execute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trtdecode.encoder.scores import Scores, activate, names_array
from trtdecode.errors import InvalidRequest
from trtdecode.manifest import ModelSpec
from trtdecode.text.encoder_tokenizer import EncoderInput


class TensorSpec(NamedTuple):
    """One tensor, as in config.pbtxt; dims without the batch dimension."""

    name: str
    data_type: str
    dims: tuple[int, ...]


_TEXT_INPUTS = (TensorSpec("text_input", "TYPE_STRING", (1,)), TensorSpec("truncate", "TYPE_BOOL", (1,)))
_PAIR_INPUT = TensorSpec("text_pair", "TYPE_STRING", (1,))
_ID_INPUTS = tuple(TensorSpec(name, "TYPE_INT32", (-1,)) for name in ("input_ids", "attention_mask", "token_type_ids"))
_KINDS = {"TYPE_STRING": "OSU", "TYPE_BOOL": "b", "TYPE_INT32": "iu"}


def input_specs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """The inputs of a model; all are optional, each request sends text_input or input_ids."""
    pair = () if spec.task == "embed" else (_PAIR_INPUT,)
    return (*_TEXT_INPUTS, *pair, *_ID_INPUTS)


def output_specs(spec: ModelSpec) -> tuple[TensorSpec, ...]:
    """The outputs of a model."""
    counts = TensorSpec("num_input_tokens", "TYPE_UINT32", (1,))
    if spec.task == "embed":
        return (TensorSpec("embedding", "TYPE_FP32", (spec.hidden_size,)), counts)
    if spec.task == "rerank":
        return (TensorSpec("score", "TYPE_FP32", (1,)), TensorSpec("logits", "TYPE_FP32", (1,)), counts)
    width = (len(spec.labels),)
    return (
        TensorSpec("label", "TYPE_STRING", (1,)),
        TensorSpec("probabilities", "TYPE_FP32", width),
        TensorSpec("labels", "TYPE_STRING", width),
        TensorSpec("logits", "TYPE_FP32", width),
        counts,
    )


@dataclass(frozen=True, slots=True)
class EncoderCall:
    """What one request asks for: k texts (or pairs), or k lists of ids."""

    texts: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()  # as many as texts, or none
    truncate: bool = False
    inputs: tuple[EncoderInput, ...] = ()


def read_encoder_call(tensors: Mapping[str, npt.NDArray[Any]], spec: ModelSpec) -> EncoderCall:
    """Validates one request's tensors, each [k, n].

    Raises:
        InvalidRequest: names the field, the value and the limit.
    """
    known = {entry.name: entry for entry in input_specs(spec)}
    for name, array in tensors.items():
        _check_tensor(name, array, known)
    if ("text_input" in tensors) == ("input_ids" in tensors):
        given = "both" if "text_input" in tensors else "neither"
        raise InvalidRequest("text_input", given, "send exactly one of text_input and input_ids")
    if "input_ids" in tensors:
        for name in ("text_pair", "truncate"):
            if name in tensors:
                raise InvalidRequest(name, "given", "goes with text_input only")
        return EncoderCall(inputs=_id_inputs(tensors, spec))
    for name in ("attention_mask", "token_type_ids"):
        if name in tensors:
            raise InvalidRequest(name, "given", "goes with input_ids only")
    texts = _texts("text_input", tensors["text_input"])
    pairs = _texts("text_pair", tensors["text_pair"]) if "text_pair" in tensors else ()
    if spec.task == "rerank" and not pairs:
        raise InvalidRequest("text_pair", "nothing", "a reranker compares text_input (the query) with text_pair")
    truncate = bool(np.asarray(tensors.get("truncate", False)).any())
    return EncoderCall(texts, pairs, truncate)


def _check_tensor(name: str, array: npt.NDArray[Any], known: Mapping[str, TensorSpec]) -> None:
    spec = known.get(name)
    if spec is None:
        raise InvalidRequest(name, list(array.shape), f"is not an input of this model; known: {', '.join(known)}")
    if array.dtype.kind not in _KINDS[spec.data_type]:
        raise InvalidRequest(name, str(array.dtype), f"must have data type {spec.data_type[5:]}")
    if array.ndim != 2 or 0 in array.shape or (spec.dims == (1,) and array.shape[1] != 1):
        expected = "[k, 1]" if spec.dims == (1,) else "[k, n]"
        raise InvalidRequest(name, list(array.shape), f"must have shape {expected}")


def _texts(name: str, array: npt.NDArray[Any]) -> tuple[str, ...]:
    return tuple(_text(name, item) for item in array.reshape(-1).tolist())


def _text(name: str, item: Any) -> str:
    if isinstance(item, str):
        return item
    try:
        return bytes(item).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, item, f"must be valid UTF-8 (byte {error.start})") from None


def _id_inputs(tensors: Mapping[str, npt.NDArray[Any]], spec: ModelSpec) -> tuple[EncoderInput, ...]:
    ids = tensors["input_ids"]
    mask = tensors.get("attention_mask", np.ones_like(ids))
    types = tensors.get("token_type_ids", np.zeros_like(ids))
    for name, array, limit in (
        ("input_ids", ids, spec.vocab_size),
        ("attention_mask", mask, 2),
        ("token_type_ids", types, spec.num_token_types),
    ):
        if array.shape != ids.shape:
            raise InvalidRequest(name, list(array.shape), f"must have the shape of input_ids, {list(ids.shape)}")
        wrong = array[(array < 0) | (array >= limit)]
        if wrong.size:
            raise InvalidRequest(name, int(wrong[0]), f"must be from 0 to {limit - 1}")
    rows = []
    for row in range(len(ids)):
        kept = mask[row] == 1
        if not kept.any():
            raise InvalidRequest("attention_mask", f"row {row}", "must keep at least one token")
        rows.append(EncoderInput(ids[row][kept].tolist(), types[row][kept].tolist()))
    return tuple(rows)


def render_rows(rows: Scores, lengths: list[int], spec: ModelSpec) -> dict[str, npt.NDArray[Any]]:
    """The outputs of one request.

    Args:
        rows: the graph's output for the k inputs, f32 [k, hidden] or [k, labels].
        lengths: tokens of each input.
    """
    counts = {"num_input_tokens": np.array(lengths, np.uint32)[:, None]}
    if spec.task == "embed":
        return {"embedding": rows, **counts}
    shares = activate(rows, spec.score_activation)
    if spec.task == "rerank":
        return {"score": shares, "logits": rows, **counts}
    best = [spec.labels[index] for index in rows.argmax(axis=1)]
    return {
        "label": names_array(best)[:, None],
        "probabilities": shares,
        "labels": np.tile(names_array(list(spec.labels)), (len(rows), 1)),
        "logits": rows,
        **counts,
    }
