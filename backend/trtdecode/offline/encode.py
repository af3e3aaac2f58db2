"""Lines for an encoder: /v1/embeddings, or /v1/rerank where the model is a reranker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from trtdecode.encoder.replica import EncoderReplica
from trtdecode.encoder.scores import Scores, activate
from trtdecode.encoder.tensors import EncoderCall, read_encoder_call
from trtdecode.errors import ConfigError, InvalidRequest, RequestError
from trtdecode.gateway.encoder_bodies import (
    EmbeddingRequest,
    EncoderRow,
    RerankRequest,
    embedding_response,
    of_body,
    rerank_response,
)
from trtdecode.gateway.errors import GatewayError
from trtdecode.offline.files import BatchLine
from trtdecode.offline.line import check_url, result_of, validated
from trtdecode.text.encoder_tokenizer import EncoderInput

EMBEDDING_URL = "/v1/embeddings"
RERANK_URL = "/v1/rerank"
_URLS = {"embed": EMBEDDING_URL, "rerank": RERANK_URL}
#: Lines encoded together, so that texts of like lengths meet; an interruption loses what one such group has done.
LINES_AT_A_TIME = 128


@dataclass(slots=True)
class _Job:
    """A line on its way: its body and its texts, or why it has none."""

    line: BatchLine
    body: Any = None
    inputs: tuple[EncoderInput, ...] = ()
    rows: list[Scores | RequestError] = field(default_factory=list)
    error: GatewayError | RequestError | None = None


class EncoderAnswerer:
    """Answers lines on one encoder replica, many lines at a time.

    Args:
        model: the name that bodies must ask for.

    Raises:
        ConfigError: a classifier, for which OpenAI's API has no body.
    """

    def __init__(self, replica: EncoderReplica, model: str) -> None:
        if replica.spec.task not in _URLS:
            raise ConfigError(
                f"{model}: a batch has no end point for task {replica.spec.task!r}; serve it, and ask /infer for labels"
            )
        self._replica = replica
        self._model = model
        self._url = _URLS[replica.spec.task]

    def answers(self, lines: Iterable[BatchLine]) -> Iterator[dict[str, Any]]:
        """Output lines in the order of `lines`."""
        remaining = iter(lines)
        while group := [self._job(line) for line in islice(remaining, LINES_AT_A_TIME)]:
            rows = iter(self._replica.run([item for job in group for item in job.inputs]))
            for job in group:
                job.rows = list(islice(rows, len(job.inputs)))
                yield result_of(job.line, partial(self._answer, job))

    def _job(self, line: BatchLine) -> _Job:
        job = _Job(line)
        try:
            check_url(line, (self._url,))
            kind: Any = EmbeddingRequest if self._url == EMBEDDING_URL else RerankRequest
            job.body = validated(kind, line.body, self._model)
            job.inputs = self._inputs(job.body.rows)
        except (GatewayError, RequestError) as error:
            job.error = error
        return job

    def _inputs(self, rows: Sequence[EncoderRow]) -> tuple[EncoderInput, ...]:
        """Raises InvalidRequest, in terms of the body's field."""
        try:
            return tuple(item for row in rows for item in self._replica.inputs_of(self._call(row)))
        except InvalidRequest as error:
            raise of_body(error, "input" if self._url == EMBEDDING_URL else "documents") from error

    def _call(self, row: EncoderRow) -> EncoderCall:
        if isinstance(row, list):
            return read_encoder_call({"input_ids": np.array([row])}, self._replica.spec)
        return EncoderCall((row,)) if isinstance(row, str) else EncoderCall((row[0],), (row[1],))

    def _answer(self, job: _Job, request_id: str) -> dict[str, Any]:
        """The body. Raises what is wrong with the line, or the first failure among its texts."""
        failed = job.error or next((row for row in job.rows if isinstance(row, RequestError)), None)
        if failed is not None:
            raise failed
        rows = np.stack(job.rows)  # type: ignore[arg-type]  # no failure among them
        num_tokens = sum(map(len, job.inputs))
        if isinstance(job.body, EmbeddingRequest):
            return embedding_response(job.body, list(rows), num_tokens)
        scores = activate(rows, self._replica.spec.score_activation)[:, 0].tolist()
        return rerank_response(job.body, scores, num_tokens, request_id)
