"""/v1/embeddings and /v1/rerank in front of a real tritonserver, asked by the real openai client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from chain_model import EOS, write_chain_checkpoint
from gateway_fixtures import Gateway
from tiny_encoders import raw_scores, sentence_vectors, write_classifier
from triton_fixtures import RunningServer
from trtbuild.pipeline import import_checkpoint

pytestmark = pytest.mark.triton_server

TEXTS = ["A cat sits on the mat.", "Stock prices fell.", "日本語 🌶"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' model and its folder."""
    folder = tmp_path_factory.mktemp("reranker")
    return write_classifier(folder, num_labels=1), folder


@pytest.fixture(scope="module")
def gateway(
    make_server: Callable[..., RunningServer],
    make_repository: Callable[..., Path],
    run_gateway: Callable[..., Gateway],
    minilm_folder: Path,
    reranker: tuple[Any, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    repository = make_repository({"chain": ""})
    import_checkpoint(minilm_folder, repository / "minilm")
    import_checkpoint(reranker[1], repository / "reranker")
    talker = write_chain_checkpoint(tmp_path_factory.mktemp("talker"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (talker / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS, "chat_template": template}))
    import_checkpoint(talker, repository / "talker", precisions=("f32",))
    with make_server(repository) as server:
        yield run_gateway(server)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_embeddings_equal_transformers(client: openai.OpenAI, minilm_folder: Path) -> None:
    answer = client.embeddings.create(model="minilm", input=TEXTS)  # the client asks for base64
    got = np.array([item.embedding for item in answer.data])
    cosines = (got * sentence_vectors(minilm_folder, TEXTS)).sum(1)
    assert np.abs(cosines - 1).max() < 1e-5
    assert [item.index for item in answer.data] == [0, 1, 2]
    assert answer.model == "minilm"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 9 + 6 + 6


def test_numbers_ids_and_one_text_give_the_same(client: openai.OpenAI) -> None:
    wanted = client.embeddings.create(model="minilm", input=TEXTS[1]).data[0].embedding
    as_numbers = client.embeddings.create(model="minilm", input=TEXTS[1], encoding_format="float").data[0].embedding
    ids = [101, 4518, 7597, 3062, 1012, 102]
    as_ids = client.embeddings.create(model="minilm", input=ids).data[0].embedding
    in_a_list = client.embeddings.create(model="minilm", input=[[101, 102], ids]).data[1].embedding
    for other in (as_numbers, as_ids, in_a_list):
        np.testing.assert_allclose(other, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"input": ["a", ""]}, 400, "input", ["empty text"]),
        ({"input": []}, 400, "input", []),
        ({"input": [[1], []]}, 400, "input", []),
        ({"input": "x " * 300}, 400, "input", ["302 tokens", "at most 256"]),
        ({"input": [40_000]}, 400, "input", ["40000", "0 to 30521"]),
        ({"input": "a", "dimensions": 64}, 400, "dimensions", ["64", "384"]),
        ({"input": "a", "model": "chain"}, 400, "model", ["chain", "text_output", "no embedding"]),
        ({"input": "a", "model": "reranker"}, 400, "model", ["reranker", "score", "no embedding"]),
        ({"input": "a", "model": "nothing"}, 404, None, ["nothing"]),
    ],
)
def test_refusals(gateway: Gateway, body: dict[str, Any], status: int, param: str | None, words: list[str]) -> None:
    answer = gateway.client.post("/v1/embeddings", json={"model": "minilm", **body})
    error = answer.json()["error"]
    assert answer.status_code == status, error
    assert str(error["param"]).split(".")[0] == str(param)
    assert [word for word in words if word not in error["message"]] == []


def test_rerank_orders_by_the_models_score(gateway: Gateway, reranker: tuple[Any, Path]) -> None:
    query, documents = "what is a b-tree?", ["fish swim", "a tree grow s.", "a b-tree is a tree."]
    body = {"model": "reranker", "query": query, "documents": [documents[0], {"text": documents[1]}, documents[2]]}
    answer = gateway.client.post("/v1/rerank", json=body).json()
    raw = np.array([raw_scores(*reranker, query, document).item() for document in documents])
    assert [result["index"] for result in answer["results"]] == np.argsort(-raw).tolist()
    got = {result["document"]["text"]: result["relevance_score"] for result in answer["results"]}
    np.testing.assert_allclose([got[document] for document in documents], 1 / (1 + np.exp(-raw)), atol=1e-5)
    top = gateway.client.post("/v1/rerank", json={**body, "top_n": 1, "return_documents": False}).json()
    assert top["results"] == [{key: answer["results"][0][key] for key in ("index", "relevance_score")}]


def test_an_encoder_does_not_chat(gateway: Gateway) -> None:
    answer = gateway.client.post("/v1/completions", json={"model": "minilm", "prompt": "a"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "model"
    assert "and no text_output" in answer.json()["error"]["message"]


def test_the_semantic_cache_uses_a_served_encoder(gateway: Gateway, run_gateway: Callable[..., Gateway]) -> None:
    cached = run_gateway(gateway.server, semantic_cache_model="minilm", semantic_cache_threshold=0.8)

    def ask(prompt: str) -> tuple[str | None, str]:
        body = {"model": "chain", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        answer = cached.client.post("/v1/completions", json=body)
        return answer.headers.get("x-trtdecode-cache"), answer.json()["choices"][0]["text"]

    assert ask("What is the capital of France?")[0] == "miss"
    hit, text = ask("What's the capital of France?")
    assert hit is not None and hit.startswith("semantic 0.9") and text
    assert ask("How do fish swim?")[0] == "miss"


def test_the_semantic_cache_compares_a_chats_last_message_and_wants_the_rest_equal(
    gateway: Gateway, run_gateway: Callable[..., Gateway]
) -> None:
    cached = run_gateway(gateway.server, semantic_cache_model="minilm", semantic_cache_threshold=0.8)
    paris, france = "What is the capital of France?", "What's the capital of France?"

    def ask(last: str, *before: str, **fields: object) -> str:
        """The header, empty without one."""
        roles = ("user", "assistant") * (len(before) + 1)
        turns = [{"role": role, "content": text} for role, text in zip(roles, (*before, last), strict=False)]
        body = {"model": "talker", "messages": turns, "max_tokens": 4, "temperature": 0, **fields}
        answer = cached.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
        return str(answer.headers.get("x-trtdecode-cache", ""))

    assert ask(paris) == "miss"
    assert ask(france).startswith("semantic 0.9")
    assert ask(france, "Hello.", "Hi.") == "miss"  # another conversation
    assert ask(paris, "Hello.", "Hi.").startswith("semantic 0.9")
    assert ask(paris, "Hello!", "Hi.") == "miss"  # what came before is compared letter by letter
    assert ask(paris, max_tokens=5) == "miss"
    assert ask(paris, response_format={"type": "json_object"}) == "miss"
    assert ask("How do fish swim?") == "miss"
    assert ask("word " * 600) == ""  # longer than the encoder's context: answered without the cache
