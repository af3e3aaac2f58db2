"""The part of `scripts/demo` that runs in `.venv`: model, server, answer, and how to go on from there."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import assets
import demo
import environment
import gemma
from progress import Progress, StepFailed
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli.chat import chat_encode, stream_answer
from trtdecode.cli.repository import newest_version_dir
from trtdecode.client import StreamClient, StreamStats
from trtdecode.errors import TrtdecodeError
from trtdecode.manifest import MANIFEST_FILE, read_manifest, verify_files
from trtdecode.server.launch import TritonServer
from trtdecode.server.ports import Ports
from trtdecode.text.tokenizer import Tokenizer

REPOSITORY = environment.ROOT / "model_repository"
SERVER_LOG = environment.CACHE / "tritonserver.log"


def run(options: argparse.Namespace) -> int:
    """Serves until Ctrl-C, or for one prompt with --once; returns the exit status."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # stop the server on the way out, as for Ctrl-C
        signal.signal(number, _interrupt)
    progress = Progress(environment.LOG_FILE)
    try:
        assets.ensure_server(progress)
        ensure_model(options, progress)
        server = make_server(options)
        with progress.step("starting tritonserver"):
            server.start()
        try:
            stats, text = answer(options, server)
            if options.once is None:
                print(invitation(options, server), flush=True)
                wait(server)
        finally:
            server.stop()
    except (StepFailed, TrtdecodeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped", file=sys.stderr)
        return 130 if options.once is not None else 0
    if options.once is not None:
        print(json.dumps(result(stats, text), ensure_ascii=False))
    return 0


def ensure_model(options: argparse.Namespace, progress: Progress) -> None:
    """Imports the model unless a complete version is there."""
    model_dir = REPOSITORY / options.model
    if (model_dir / "1" / MANIFEST_FILE).is_file():
        try:
            verify_files(model_dir / "1", read_manifest(model_dir / "1"), digests=False)  # the server checks digests
            return
        except TrtdecodeError as error:
            progress.say(f"{error}")
    if options.model == assets.MODEL_NAME:
        gguf = assets.ensure_gguf(progress)
    else:
        gguf = gemma.ensure_gguf(progress, accepted=options.accept_gemma_terms)
    with progress.step(f"importing it into {model_dir.relative_to(environment.ROOT)}"):
        import_checkpoint(gguf, model_dir, version=1, replace=True)


def make_server(options: argparse.Namespace) -> TritonServer:
    """One server on the ports asked for; its output goes to a log of its own."""
    SERVER_LOG.unlink(missing_ok=True)
    ports = Ports(options.http_port, options.grpc_port, options.metrics_port)
    return TritonServer(REPOSITORY, ports=ports, host=options.host, log_path=SERVER_LOG, load=[options.model])


def answer(options: argparse.Namespace, server: TritonServer) -> tuple[StreamStats, str]:
    """Asks through the model's chat template, where it has one, and streams the answer to stdout."""
    text: str = options.prompt if options.once is None else options.once
    print(f"\n> {text}\n", flush=True)
    prompt: str | list[int] = text
    if not is_pretrained(options):
        prompt = chat_encode(newest_version_dir(REPOSITORY, options.model))([{"role": "user", "content": text}])
    with StreamClient(server.grpc_address, options.model) as client:
        return stream_answer(client, prompt, {"temperature": 0, "max_tokens": options.max_tokens})


def is_pretrained(options: argparse.Namespace) -> bool:
    """Whether the model only continues texts: it has no chat template."""
    return not Tokenizer.from_dir(newest_version_dir(REPOSITORY, options.model)).chat_templates


def result(stats: StreamStats, text: str) -> dict[str, object]:
    """What --once prints last, for programs."""
    return {
        "text": text,
        "num_output_tokens": stats.num_output_tokens,
        "ttft_ms": round(stats.ttft_ms, 2),
        "tokens_per_s": round(stats.tokens_per_s, 2),
    }


def invitation(options: argparse.Namespace, server: TritonServer) -> str:
    """What is up, and how to call it."""
    body = '{"text_input": "Once upon a time", "max_tokens": 32, "stream": true}'
    http = f"http://{server.http_address}/v2/models/{options.model}"
    python = Path(sys.executable).relative_to(environment.ROOT)
    raw = " --raw" if is_pretrained(options) else ""
    return f"""
tritonserver is up (log: {SERVER_LOG.relative_to(environment.ROOT)}):
  HTTP     {server.http_address}   {http}/generate_stream
  gRPC     {server.grpc_address}
  metrics  {server.metrics_address}   http://{server.metrics_address}/metrics

With curl:
  curl -N -d '{body}' {http}/generate_stream

With tritonclient ({python} has it):
  import numpy as np, tritonclient.grpc as triton

  def tensor(name, datatype, values):
      made = triton.InferInput(name, [1], datatype)
      made.set_data_from_numpy(values)
      return made

  inputs = [
      tensor("text_input", "BYTES", np.array([b"Once upon a time"], dtype=object)),
      tensor("max_tokens", "INT32", np.array([32], np.int32)),
      tensor("stream", "BOOL", np.array([True])),
  ]
  client = triton.InferenceServerClient("{server.grpc_address}")
  client.start_stream(lambda result, error: print(error or result.as_numpy("text_output")[0].decode(), end=""))
  client.async_stream_infer("{options.model}", inputs)
  client.stop_stream()  # waits for the answer

In a terminal:
  {python.parent}/trtdecode chat --model {options.model}{raw} --address {server.grpc_address}

Ctrl-C ends it.
"""


def wait(server: TritonServer) -> None:
    """Until Ctrl-C; raises StepFailed when the server ends by itself."""
    while server.is_running:
        time.sleep(0.5)
    raise StepFailed(f"tritonserver ended by itself; its log says why: {SERVER_LOG}")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run(demo.parse_arguments()))
