"""One server with models that say what a case needs, and a gateway in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from chain_model import WORDS
from gateway_fixtures import Gateway
from script_model import ScriptModel, write_pieces_checkpoint, write_script_checkpoint
from triton_fixtures import RunningServer, wait_for
from triton_grpc import Answer, ask

C01_TEXT = "ok 🌶 你好 👩‍👩‍👧 ď."


def one_a_byte(text: str) -> list[bytes]:
    """A script of one token a byte, so that every character beyond ASCII is cut."""
    return [bytes([byte]) for byte in text.encode()]


#: Byte-level model: name -> script.
SCRIPTS: dict[str, Sequence[str | bytes]] = {
    "c01": one_a_byte(C01_TEXT),
    "pepper": one_a_byte("🌶"),
    "words": WORDS,
    "red": ["red", ",", " green", ".", " blue"],
    "forty": one_a_byte("a" * 40),
    "silence": [],
    "flag": one_a_byte("🇳🇴é"),
    "broken": [b"a", b"\xff", b"b"],
}
#: Model with "▁" pieces: name -> script.
PIECES: dict[str, Sequence[str | bytes]] = {
    "deep": ["Deep", "▁learning", "▁is", "▁a", "▁subset", "▁of", "▁ML"],
    "led": ["▁Deep", "▁learning", "▁", "▁twice"],
    "bytes": ["▁ok", *(bytes([byte]) for byte in "🌶".encode()), "▁end"],
}


class ScriptServer:
    """The server's models by name, and the ways to ask them."""

    def __init__(self, server: RunningServer, gateway: Gateway, models: dict[str, ScriptModel]) -> None:
        self.server = server
        self.gateway = gateway
        self.models = models

    def prompt(self, script: str) -> str:
        """The text prompt that makes model "script" say a script (the model with pieces takes ids)."""
        return "x" * self.models["script"].num_prompt_tokens[script]

    def fields(self, model: str, script: str, **fields: Any) -> dict[str, Any]:
        """Inputs of a greedy request."""
        if model == "script":
            prompt: dict[str, Any] = {"text_input": self.prompt(script), "exclude_input_in_output": True}
        else:
            prompt = {"input_ids": self.models[model].prompt_ids(script)}
        return {**prompt, "temperature": 0.0, "return_finish_reason": True, **fields}

    def generate(self, script: str, *, model: str = "script", **fields: Any) -> dict[str, Any]:
        """The body of a good answer of /generate."""
        answer = self.server.client.generate(model, self.fields(model, script, **fields))
        assert answer.status == 200, answer.body
        content: dict[str, Any] = answer.json()
        return content

    def generate_stream(self, script: str, *, model: str = "script", **fields: Any) -> list[dict[str, Any]]:
        """All events of /generate_stream."""
        return list(self.server.client.generate_stream(model, self.fields(model, script, stream=True, **fields)))

    def grpc(self, script: str, *, model: str = "script", **fields: Any) -> Answer:
        """The answer over a gRPC stream."""
        import numpy as np

        inputs = self.fields(model, script, **fields)
        if "input_ids" in inputs:
            inputs["input_ids"] = np.array(inputs["input_ids"], np.int32)
        return ask(self.server.grpc_address, model, inputs)

    def completion(self, script: str, *, model: str = "script", **fields: Any) -> Any:
        """The gateway's /v1/completions, as httpx gives it."""
        prompt = self.prompt(script) if model == "script" else self.models[model].prompt_ids(script)
        body = {"model": model, "prompt": prompt, "temperature": 0, **fields}
        return self.gateway.client.post("/v1/completions", json=body)

    def is_idle(self) -> bool:
        return all(self.server.is_idle(model) for model in self.models)


def import_model(model: ScriptModel) -> Path:
    """Its version folder, f32."""
    from trtbuild.pipeline import import_checkpoint

    return import_checkpoint(model.folder, model.folder.parent / "model", precisions=("f32",)).version_dir


@pytest.fixture(scope="session")
def scripts(
    tmp_path_factory: pytest.TempPathFactory,
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    run_gateway: Callable[..., Gateway],
) -> Iterator[ScriptServer]:
    """A server with `script`, `pieces`, `flat` (all logits equal) and `chain`."""
    folder = {name: tmp_path_factory.mktemp(name) / "checkpoint" for name in ("script", "pieces", "flat")}
    models = {
        "script": write_script_checkpoint(folder["script"], SCRIPTS),
        "pieces": write_pieces_checkpoint(folder["pieces"], PIECES),
        "flat": write_script_checkpoint(folder["flat"], {}, flat=True),
    }
    versions = {name: import_model(model) for name, model in models.items()}
    repository = make_repository(dict.fromkeys((*models, "chain"), ""), **versions)
    with make_server(repository) as server:
        yield ScriptServer(server, run_gateway(server), models)


@pytest.fixture
def settled(scripts: ScriptServer) -> Iterator[None]:
    """CASES' POST conditions after the test: nothing left, all blocks back, the same stubs, the same greedy text."""
    before = {name: scripts.server.stub_pid(name) for name in scripts.models}
    yield
    wait_for(scripts.is_idle, what="idle")
    assert {name: scripts.server.stub_pid(name) for name in scripts.models} == before
    assert scripts.generate("words")["text_output"] == "".join(WORDS)
