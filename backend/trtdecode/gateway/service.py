"""From a validated body to Triton and back: routing, replicas, caches. The end points only give it form."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.requests import Request

from trtdecode.gateway.answers import Answer, Sample, collect
from trtdecode.gateway.cache import ResponseCache, SemanticCache, cacheable, request_key
from trtdecode.gateway.encoder_bodies import EncoderRow
from trtdecode.gateway.errors import GatewayError
from trtdecode.gateway.prompts import Prompts
from trtdecode.gateway.replicas import Replicas
from trtdecode.gateway.routing import Router
from trtdecode.gateway.schemas import Sampling
from trtdecode.gateway.settings import GatewaySettings
from trtdecode.gateway.split_log import SplitLog
from trtdecode.gateway.triton import Generation, Piece, TritonConnection

_TRACE_HEADERS = ("traceparent", "tracestate")


@dataclass(slots=True)
class Job:
    """One prompt on its way; `headers` tell the client what was decided."""

    generation: Generation
    headers: dict[str, str]
    split: str = ""  # the split's model name when one has chosen the target and is logged


class Service:
    """One per gateway process; lives on its event loop.

    Args:
        hurry: called with replica and model when an answer is given up; see `LocalInspector.hurry`.
    """

    def __init__(self, settings: GatewaySettings, router: Router, hurry: Callable[[int, str], None]) -> None:
        self.settings = settings
        self.prompts = Prompts(settings.model_repository)
        self.replicas = Replicas(
            [
                TritonConnection(url, settings.request_timeout, partial(hurry, replica))
                for replica, url in enumerate(settings.triton_urls)
            ],
            prefix_affinity=settings.prefix_affinity,
        )
        self._router = router
        entries = settings.response_cache_entries
        self.cache = ResponseCache(entries, settings.response_cache_ttl)
        self.semantic = SemanticCache(
            settings.semantic_cache_threshold, max(entries, 1024), settings.response_cache_ttl
        )

        self._split_log = SplitLog(settings.split_log, self._mirror) if settings.split_log else None

    async def close(self) -> None:
        if self._split_log:
            await self._split_log.close()
        for connection in self.replicas.connections:
            await connection.close()

    async def models(self) -> list[str]:
        """Models that are ready on any replica. Raises GatewayError 503 when all are away."""
        names: set[str] = set()
        error: GatewayError | None = None
        for connection in self.replicas.connections:
            try:
                names.update(await connection.models())
            except GatewayError as found:
                error = found
        if error is not None and not names:
            raise error
        return sorted(names)

    def route(self, request: Request, body: Sampling, num_chars: int) -> tuple[str, dict[str, str]]:
        """The served model for a body, and the headers that say so."""
        record = request.state.record
        model, why = self._router.route(body.model, num_chars, record.fields.get("caller", ""), body.user or "")
        record.fields["model"] = model
        if why == "split":
            record.fields["split"] = body.model
        return model, {"x-trtdecode-model": model, **({"x-trtdecode-route": why} if why else {})}

    def job(
        self,
        request: Request,
        model: str,
        prompt: str | list[int],
        sampling: dict[str, Any],
        *,
        num_samples: int,
        logprobs: bool,
        headers: dict[str, str],
        meaning: tuple[str, str] | None = None,
    ) -> Job:
        """One prompt as a generation, with the caller's trace and request id on it.

        Args:
            meaning: see `Generation.meaning`; None keeps it out of the semantic cache.
        """
        record = request.state.record
        if self.settings.log_prompts:
            record.fields["prompt"] = prompt
        trace = {name: value for name in _TRACE_HEADERS if (value := request.headers.get(name))}
        generation = Generation(model, prompt, sampling, num_samples, logprobs, record.request_id, meaning, trace)
        return Job(generation, headers, record.fields.get("split", "") if self._split_log else "")

    async def stream(self, job: Job) -> AsyncGenerator[Piece]:
        """Pieces of the answer from the replica that was chosen; closing it cancels the request there."""
        start = time.monotonic()
        whole = Answer([Sample() for _ in range(job.generation.num_samples)]) if job.split else None
        index, why = await self.replicas.choose_ready(job.generation.prompt)
        job.headers["x-trtdecode-replica"] = f"{index} {why}"
        self.replicas.started(index)
        try:
            async with contextlib.aclosing(self.replicas.connections[index].generate(job.generation)) as pieces:
                async for piece in pieces:
                    if whole is not None:
                        whole.add(piece)
                    yield piece
        finally:
            self.replicas.ended(index)
        if whole is not None and self._split_log is not None:
            others = [name for name in self._router.splits[job.split].targets if name != job.generation.model]
            self._split_log.compare(job.generation, job.split, others, whole, time.monotonic() - start)

    async def _mirror(self, generation: Generation) -> Answer:
        return await collect(self.stream(Job(generation, {})), generation.num_samples)

    async def answer(self, job: Job) -> Answer:
        """The whole answer, from a cache where one is on and holds it."""
        generation = job.generation
        shape = {"n": generation.num_samples, "logprobs": generation.logprobs}
        exact = bool(self.settings.response_cache_entries) and cacheable(generation.sampling)
        key = request_key(generation.model, generation.prompt, generation.sampling, shape)
        if exact and (found := self.cache.get(key)) is not None:
            job.headers["x-trtdecode-cache"] = "hit"
            return found  # type: ignore[no-any-return]
        vector = scope = None
        if self.settings.semantic_cache_model and generation.meaning is not None:
            text, rest = generation.meaning
            scope = json.dumps([generation.model, generation.sampling, shape, rest], sort_keys=True)
            with contextlib.suppress(GatewayError):  # too long for the encoder, or it is away: an answer without it
                vectors, _ = await self.encode(self.settings.semantic_cache_model, [text], "embedding")
                vector = vectors[0]
            similar = self.semantic.get(scope, vector) if vector is not None else None
            if similar is not None:
                job.headers["x-trtdecode-cache"] = f"semantic {similar[1]:.4f}"
                return similar[0]  # type: ignore[no-any-return]
        answer = await collect(self.stream(job), generation.num_samples)
        if exact or vector is not None:
            job.headers["x-trtdecode-cache"] = "miss"
        if exact:
            self.cache.put(key, answer)
        if vector is not None and scope is not None:
            self.semantic.put(scope, vector, answer)
        return answer

    async def encode(self, model: str, rows: Sequence[EncoderRow], output: str) -> tuple[list[Any], int]:
        """`TritonConnection.encode` on the replica with the least to do. Raises GatewayError."""
        index, _ = await self.replicas.choose_ready("")
        self.replicas.started(index)
        try:
            return await self.replicas.connections[index].encode(model, rows, output)
        finally:
            self.replicas.ended(index)
