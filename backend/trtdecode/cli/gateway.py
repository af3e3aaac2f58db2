"""`trtdecode gateway`: OpenAI's API in front of a running tritonserver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtdecode.cli.repository import DEFAULT_REPOSITORY


def register(app: typer.Typer) -> None:
    app.command("gateway", rich_help_panel="Serving")(gateway)


def gateway(
    repository: Annotated[
        Path, typer.Argument(help="Model repository: tokenizers and chat templates.")
    ] = DEFAULT_REPOSITORY,
    triton: Annotated[
        list[str] | None, typer.Option(help="gRPC host:port; repeat for replicas. [127.0.0.1:8001]")
    ] = None,
    metrics: Annotated[list[str] | None, typer.Option(help="http://host:port/metrics of each replica.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8080,
    api_keys: Annotated[Path | None, typer.Option(help="File with one key a line; also TRTDECODE_API_KEYS.")] = None,
    requests_per_minute: Annotated[int, typer.Option(min=0, help="For each key; 0: no limit.")] = 0,
    max_concurrency: Annotated[int, typer.Option(min=0, help="For each key; 0: no limit.")] = 0,
    max_body_bytes: Annotated[int, typer.Option(min=1)] = 4 << 20,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Allow this origin; repeatable.")] = None,
    routes: Annotated[Path | None, typer.Option(help="Routing rules and A/B splits, TOML.")] = None,
    split_log: Annotated[
        Path | None, typer.Option(help="Ask a split's other targets too, and log the answers side by side.")
    ] = None,
    prefix_affinity: Annotated[bool, typer.Option(help="Send a conversation to the replica that holds it.")] = False,
    response_cache: Annotated[int, typer.Option(min=0, help="Entries of the exact response cache; 0: off.")] = 0,
    semantic_cache_model: Annotated[str, typer.Option(help="Served embedding model for the semantic cache.")] = "",
    semantic_cache_threshold: Annotated[float, typer.Option(help="Cosine that counts as the same.")] = 0.95,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds to finish running requests at the end.")] = 30.0,
    log_prompts: Annotated[bool, typer.Option(help="Prompts in the access log.")] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file; needs --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file.")] = None,
) -> None:
    """Serve OpenAI's API, a chat page and a view of the engine room at /.

    Everything that changes answers or limits callers is off by default.
    """
    from trtdecode.errors import ConfigError
    from trtdecode.gateway.run import run_gateway
    from trtdecode.gateway.settings import GatewaySettings, read_api_keys

    if (tls_certificate is None) != (tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key go together; give both or none")
    settings = GatewaySettings(
        triton_urls=tuple(triton or ["127.0.0.1:8001"]),
        metrics_urls=tuple(metrics or ["http://127.0.0.1:8002/metrics"]),
        model_repository=repository if repository.is_dir() else None,
        api_keys=read_api_keys(api_keys),
        requests_per_minute=requests_per_minute,
        max_concurrency=max_concurrency,
        max_body_bytes=max_body_bytes,
        cors_origins=tuple(cors_origin or ()),
        log_prompts=log_prompts,
        response_cache_entries=response_cache,
        semantic_cache_model=semantic_cache_model,
        semantic_cache_threshold=semantic_cache_threshold,
        routes=routes,
        split_log=split_log,
        prefix_affinity=prefix_affinity,
    )
    run_gateway(settings, host, port, tls_certificate=tls_certificate, tls_key=tls_key, drain_timeout=drain_timeout)
