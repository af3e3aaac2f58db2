"""Batches on a real loop: OpenAI's bodies in, OpenAI's bodies out, and what becomes of bad lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chain_model import EOS, cycle_text
from trtdecode.cli import main
from trtdecode.offline.answer import Answerer
from trtdecode.offline.files import BatchLine
from trtdecode.offline.run import BatchSummary, run_batch
from trtdecode.replica import Replica

GREEDY = {"model": "chain", "temperature": 0}


@pytest.fixture
def answerer(chain_replica: Replica) -> Answerer:
    return Answerer(chain_replica, "chain", max_in_flight=4)


def completion(answerer: Answerer, **fields: Any) -> dict[str, Any]:
    """The response object of one completion line."""
    line = BatchLine(1, "id", "POST", "/v1/completions", {**GREEDY, **fields})
    response: dict[str, Any] = answerer.answer(line)["response"]
    return response


def test_completion(answerer: Answerer) -> None:
    response = completion(answerer, prompt="x", max_tokens=7)
    assert response["status_code"] == 200
    body = response["body"]
    assert body["object"] == "text_completion"
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [(cycle_text(7), "length")]
    assert body["usage"] == {"prompt_tokens": 1, "completion_tokens": 7, "total_tokens": 8}


def test_ends_at_eos_and_stop_strings(answerer: Answerer) -> None:
    (choice,) = completion(answerer, prompt="!")["body"]["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ABCDE", "stop")
    (choice,) = completion(answerer, prompt="x", stop=["three fo"])["body"]["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one two ", "stop")


def test_several_prompts_samples_and_echo(answerer: Answerer) -> None:
    body = completion(answerer, prompt=["!", "~"], n=2, echo=True)["body"]
    assert [c["text"] for c in body["choices"]] == ["!ABCDE", "!ABCDE", "~🌶", "~🌶"]
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 2


def test_logprobs_in_openais_form(answerer: Answerer) -> None:
    (choice,) = completion(answerer, prompt="!", max_tokens=2, logprobs=1)["body"]["choices"]
    assert choice["logprobs"]["tokens"] == ["A", "B"]
    assert choice["logprobs"]["text_offset"] == [0, 1]
    assert all(value <= 0 for value in choice["logprobs"]["token_logprobs"])


@pytest.mark.parametrize(
    ("line", "status", "param", "message"),
    [
        (BatchLine(1, "a", "GET", "/v1/completions", {}), 400, "method", "method: got 'GET'; must be POST"),
        (BatchLine(1, "a", "POST", "/v1/embeddings", {}), 400, "url", "url: got '/v1/embeddings'; must be /v1/chat/"),
        (BatchLine(1, "a", "POST", "/v1/completions", None), 400, "body", "body: "),
        (
            BatchLine(1, "a", "POST", "/v1/completions", {**GREEDY, "prompt": "x", "max_tokens": -1}),
            400,
            "max_tokens",
            "",
        ),
        (
            BatchLine(1, "a", "POST", "/v1/completions", {**GREEDY, "prompt": "x", "beam": 1}),
            400,
            "beam",
            "beam: Extra",
        ),
        (BatchLine(1, "a", "POST", "/v1/completions", {**GREEDY, "prompt": "x", "stream": True}), 400, "stream", ""),
        (
            BatchLine(1, "a", "POST", "/v1/completions", {"model": "gpt", "prompt": "x"}),
            404,
            "model",
            "model: got 'gpt'",
        ),
        (BatchLine(1, "a", "POST", "/v1/completions", {**GREEDY, "prompt": [9999]}), 400, "input_ids", ""),
        (BatchLine(1, "a", "POST", "/v1/chat/completions", {**GREEDY, "messages": []}), 400, "messages", ""),
        (
            BatchLine(
                1, "a", "POST", "/v1/chat/completions", {**GREEDY, "messages": [{"role": "user", "content": "x"}]}
            ),
            400,
            "model",
            "model 'chain' has no chat template; use /v1/completions",
        ),
    ],
)
def test_a_bad_line_fails_alone(answerer: Answerer, line: BatchLine, status: int, param: str, message: str) -> None:
    result = answerer.answer(line)
    assert (result["custom_id"], result["error"]) == ("a", None)
    assert result["response"]["status_code"] == status
    error = result["response"]["body"]["error"]
    assert error["param"] == param
    assert error["message"].startswith(message)


def write_requests(path: Path, count: int) -> Path:
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {**GREEDY, "prompt": "x", "max_tokens": i},
        }
        for i in range(1, count + 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def texts(path: Path) -> dict[str, str]:
    results = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({result["custom_id"] for result in results}) == len(results), "a request was answered twice"
    return {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in results}


def test_answers_everything_once(tmp_path: Path, answerer: Answerer) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    seen: list[int] = []
    summary = run_batch(
        source,
        tmp_path / "out.jsonl",
        answerer,
        on_result=lambda s: seen.append(s.num_ok + s.num_failed),
    )
    assert summary == BatchSummary(40, 0, 40, 0, sum(range(1, 41)))
    assert seen == list(range(41))
    assert texts(tmp_path / "out.jsonl") == {f"r{i}": cycle_text(i) for i in range(1, 41)}


def test_goes_on_after_an_interruption(tmp_path: Path, answerer: Answerer) -> None:
    source = write_requests(tmp_path / "in.jsonl", 12)

    def interrupt(summary: BatchSummary) -> None:
        if summary.num_ok == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(source, tmp_path / "out.jsonl", answerer, on_result=interrupt)
    assert len(texts(tmp_path / "out.jsonl")) == 5
    summary = run_batch(source, tmp_path / "out.jsonl", answerer)
    assert (summary.num_taken_up, summary.num_ok) == (5, 7)
    assert texts(tmp_path / "out.jsonl") == {f"r{i}": cycle_text(i) for i in range(1, 13)}


def test_command(tmp_path: Path, chain_version: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(chain_version, tmp_path / "repository" / "chain" / "1")
    source, target = write_requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    arguments = ["batch", str(source), str(target), "--repository", str(tmp_path / "repository")]
    assert main([*arguments, "--set", "kv_cache_bytes=64MiB", "--set", "num_threads=1"]) == 0
    assert "3 answered, 0 failed, 0 done before; 6 tokens in" in capsys.readouterr().err
    assert texts(target) == {f"r{i}": cycle_text(i) for i in (1, 2, 3)}
    assert EOS not in target.read_text()


def test_command_refuses_a_wrong_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["batch", str(tmp_path / "in"), str(tmp_path / "out"), "--repository", str(tmp_path)]
    assert main([*arguments, "--set", "max_seqs=3"]) == 1
    assert "unknown key 'max_seqs'; did you mean max_num_seqs?" in capsys.readouterr().err
    assert main([*arguments, "--set", "max_num_seqs"]) == 1
    assert "--set max_num_seqs: must be KEY=VALUE" in capsys.readouterr().err
