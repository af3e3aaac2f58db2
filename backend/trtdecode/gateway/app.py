"""The FastAPI application: end points, and what turns every failure into OpenAI's error object."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException

from trtdecode.gateway import encoding, openapi, page
from trtdecode.gateway.chat import chat_events, chat_response, meaning
from trtdecode.gateway.completions import completion_events, completion_response
from trtdecode.gateway.engine_room import EngineRoom
from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.limits import CallerLimits, KeyRing
from trtdecode.gateway.local_inspect import LocalInspector
from trtdecode.gateway.middleware import RequestGate, error_response
from trtdecode.gateway.routing import read_router
from trtdecode.gateway.sampling import chat_parameters, completion_parameters
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest
from trtdecode.gateway.service import Service
from trtdecode.gateway.settings import GatewaySettings
from trtdecode.gateway.streaming import ClientGone, EventStream, until_disconnect
from trtdecode.gateway.validation import wrong_field


def create_app(settings: GatewaySettings) -> FastAPI:
    """Builds the application. Raises ConfigError for rules that cannot be read."""
    router = read_router(settings.routes)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        local = LocalInspector(settings.triton_urls)
        app.state.service = Service(settings, router, local.hurry)
        app.state.engine_room = EngineRoom(settings.metrics_urls, local)
        yield
        await app.state.service.close()

    app = FastAPI(title="trtdecode gateway", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_error_handlers(app)
    _add_generation(app)
    encoding.register(app, openapi.ERRORS)
    _add_information(app)
    page.mount(app)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(
        RequestGate,
        keys=KeyRing(settings.api_keys),
        limits=CallerLimits(settings.requests_per_minute, settings.max_concurrency),
        max_body_bytes=settings.max_body_bytes,
    )
    return app


def _add_generation(app: FastAPI) -> None:
    @app.post("/v1/chat/completions", responses=openapi.CHAT | openapi.ERRORS)
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        service: Service = app.state.service
        num_chars = sum(len(message.text) for message in body.messages)
        model, headers = service.route(request, body, num_chars)
        prompt = await asyncio.to_thread(service.prompts.chat_ids, model, body)
        num_samples = body.n or 1
        job = service.job(
            request,
            model,
            prompt,
            chat_parameters(body),
            num_samples=num_samples,
            logprobs=bool(body.logprobs),
            headers=headers,
            meaning=meaning(body),
        )
        answer_id = request.state.record.request_id
        if body.stream:
            events = chat_events(body, service.stream(job), num_samples, answer_id)
            return await EventStream.open(request, events, headers)
        answer = await until_disconnect(request, service.answer(job))
        return JSONResponse(chat_response(body, answer, answer_id), headers=job.headers)

    @app.post("/v1/completions", responses=openapi.COMPLETION | openapi.ERRORS)
    async def completions(body: CompletionRequest, request: Request) -> Response:
        service: Service = app.state.service
        prompts = body.prompts
        model, headers = service.route(request, body, sum(len(prompt) for prompt in prompts))
        num_samples = body.n or 1
        jobs = [
            service.job(
                request,
                model,
                prompt,
                completion_parameters(body),
                num_samples=num_samples,
                logprobs=body.logprobs is not None,
                headers=headers,
                meaning=(prompt, "") if isinstance(prompt, str) and prompt else None,
            )
            for prompt in prompts
        ]

        def echo(number: int) -> str:
            prompt = prompts[number]
            return prompt if isinstance(prompt, str) else service.prompts.text(model, prompt)

        answer_id = request.state.record.request_id
        if body.stream:
            streams = [service.stream(job) for job in jobs]
            events = completion_events(body, streams, num_samples, answer_id, echo)
            return await EventStream.open(request, events, headers)
        answers = await until_disconnect(request, _all([service.answer(job) for job in jobs]))
        return JSONResponse(completion_response(body, answers, answer_id, echo), headers=headers)


def _add_information(app: FastAPI) -> None:
    @app.get("/v1/models", responses=openapi.MODELS | openapi.ERRORS)
    async def models() -> Response:
        names = await app.state.service.models()
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "trtdecode"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    @app.get("/health", responses=openapi.HEALTH | openapi.ERRORS)
    async def health() -> Response:
        connections = app.state.service.replicas.connections
        ready = sum(await asyncio.gather(*(connection.is_ready() for connection in connections)))
        if not ready:
            raise GatewayError(503, "no inference server is ready; retry later", retry_after=2)
        return JSONResponse({"status": "ready", "replicas_ready": ready, "replicas": len(connections)})

    @app.get("/metrics", response_class=PlainTextResponse, responses=openapi.ERRORS)
    async def metrics() -> Response:
        return PlainTextResponse(await app.state.engine_room.metrics_text())


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(GatewayError)
    async def gateway_error(request: Request, error: GatewayError) -> JSONResponse:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        first = errors[0]
        if first["type"] == "json_invalid":
            return error_response(invalid(None, f"body: not JSON at byte {first['loc'][-1]}: {first['ctx']['error']}"))
        field, text = wrong_field(errors, num_outer=1)  # FastAPI puts "body" in front
        return error_response(invalid(field or None, f"{field or 'body'}: {text}"))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        answer = error_response(GatewayError(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})  # 405 names the allowed methods
        return answer

    @app.exception_handler(ClientGone)
    async def client_gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it; it ends the ASGI call and names the status in the log


async def _all(works: list[Any]) -> list[Any]:
    """Results in order; the first error cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
