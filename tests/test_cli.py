"""The command line: what it says, what it refuses, and that each command reaches its library."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_triton import FakeModel, serving
from trtdecode.cli import chat, main
from trtdecode.cli.models import default_name
from trtdecode.cli.repository import choose_model, newest_version_dir, versions_of
from trtdecode.client import StreamClient
from trtdecode.errors import ConfigError, ManifestError

COMMANDS = ("import", "build", "layers", "serve", "drain", "chat", "replay", "batch")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def address(model: FakeModel) -> Iterator[str]:
    with serving(model) as served:
        yield served


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"│ {command} " in text
    assert "trtdecode import SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-h"]) == 0
    assert f"Usage: trtdecode {command}" in capsys.readouterr().out


def test_no_arguments_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    captured = capsys.readouterr()
    assert "Usage: trtdecode" in captured.out + captured.err


def test_help_is_quick() -> None:
    """Under half a second, as no heavy library is loaded for it: CPU time, and the best of three on a busy machine."""
    program = (
        "import sys, time; from trtdecode.cli import main; main(['--help']); "
        "print(sorted({'numpy', 'openvino', 'grpc', 'torch', 'onnx'} & set(sys.modules)), time.process_time())"
    )
    seconds = []
    for _ in range(3):
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        loaded, _, taken = result.stdout.splitlines()[-1].rpartition(" ")
        assert loaded == "[]"
        seconds.append(float(taken))
    assert min(seconds) < 0.5


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import"]) == 2
    assert main(["serve", "--http-port", "70000"]) == 2
    assert "Invalid value for '--http-port': Input should be less than or equal to 65535" in capsys.readouterr().err


def test_refusal_is_one_line_and_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path / "missing.gguf"), "--repository", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"trtdecode: {tmp_path / 'missing.gguf'}: ")
    assert captured.err.count("\n") == 1


def test_serve_names_a_missing_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "none")]) == 1
    assert "is not a folder; import a model with `trtdecode import`" in capsys.readouterr().err


def test_drain_with_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRTDECODE_RUNTIME_DIR", str(tmp_path / "run"))
    assert main(["drain"]) == 1
    assert "no running instance" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [("Llama-3.2-1B.Q4_0.gguf", "llama-3.2-1b.q4_0"), ("models/Qwen2.5-0.5B/", "qwen2.5-0.5b")],
)
def test_default_name(checkpoint: str, name: str) -> None:
    assert default_name(Path(checkpoint)) == name


def test_versions_are_numbered_folders(tmp_path: Path) -> None:
    for folder in ("1", "10", "2", ".import-3-77", "3.tmp", "x"):
        (tmp_path / "tiny" / folder).mkdir(parents=True)
    (tmp_path / "tiny" / "4").touch()
    assert versions_of(tmp_path / "tiny") == [1, 2, 10]
    assert newest_version_dir(tmp_path, "tiny") == tmp_path / "tiny" / "10"
    assert versions_of(tmp_path / "none") == []


def test_choose_model(tmp_path: Path) -> None:
    (tmp_path / "a" / "1").mkdir(parents=True)
    (tmp_path / "no-version").mkdir()
    assert choose_model(tmp_path, None) == "a"
    (tmp_path / "b" / "1").mkdir(parents=True)
    assert choose_model(tmp_path, "b") == "b"
    with pytest.raises(ConfigError, match=r"--model is needed: not exactly one model in .* \(present: a, b\)"):
        choose_model(tmp_path, None)
    with pytest.raises(ConfigError, match=r"--model c: not in .* \(present: a, b\)"):
        choose_model(tmp_path, "c")


def test_one_question(address: str, model: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "hi there", "--raw", "--model", "tiny", "--address", address, "--seed", "7"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "héllo 🌶\n"
    assert captured.err.startswith("[5 tokens, first after ")
    (request,) = model.requests
    sent = {tensor.name: tensor.contents for tensor in request.inputs}
    assert sent["text_input"].bytes_contents[0] == b"hi there"
    assert b'"seed": 7' in sent["sampling_parameters"].bytes_contents[0]


def test_conversation_remembers_and_forgets(address: str) -> None:
    seen: list[list[dict[str, str]]] = []

    def encode(messages: object) -> list[int]:
        assert isinstance(messages, list)
        seen.append(messages)
        return [1]

    with StreamClient(address, "tiny") as client:
        conversation = chat.Conversation(client, encode, {}, [{"role": "system", "content": "be brief"}])
        conversation.ask("one")
        conversation.ask("two")
        conversation.forget()
        conversation.ask("three")
    assert [[message["content"] for message in messages] for messages in seen] == [
        ["be brief", "one"],
        ["be brief", "one", "héllo 🌶", "two"],
        ["be brief", "three"],
    ]


def test_conversation_goes_on_after_a_refusal(
    address: str, model: FakeModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["bad", "/nonsense", "good"])
    model.behaviour = "error"

    def next_line(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        if line == "good":
            model.behaviour = "answer"
        return line

    monkeypatch.setattr("builtins.input", next_line)
    assert main(["chat", "--raw", "--model", "tiny", "--address", address]) == 0
    captured = capsys.readouterr()
    assert "max_tokens: got -1; must be at least 1" in captured.err
    assert "/nonsense: no such command" in captured.err
    assert captured.out.endswith("héllo 🌶\n\n")


@pytest.fixture(scope="session")
def dump(chain_version: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flight recorder's file of two finished requests."""
    from trtdecode.config import ServingConfig
    from trtdecode.replica import Replica
    from trtdecode.sampling.params import SamplingParams

    config = ServingConfig(kv_cache_bytes=64 << 20, max_num_seqs=8, num_threads=1)
    path = tmp_path_factory.mktemp("dump") / "dump.json"
    with Replica.load(chain_version, config) as replica:
        replica.generate("!", SamplingParams(temperature=0.0))
        replica.generate("x", SamplingParams(seed=3, max_tokens=4))
        replica._loop.recorder.save(path)
    return path


def test_replay_decides_the_same_again(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(dump), "--show"]) == 0
    text = capsys.readouterr().out
    assert "steps with 10 tokens replayed, 0 requests generated again" in text
    assert text.endswith("same as recorded\n")


def test_replay_generates_the_same_again(
    dump: Path, chain_version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(chain_version, tmp_path / "chain" / "1")
    assert main(["replay", str(dump), "--model", "chain", "--repository", str(tmp_path), "--show"]) == 0
    text = capsys.readouterr().out
    assert "'ABCDE'" in text
    assert "2 requests generated again" in text


def test_replay_shows_what_differs(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(dump.read_text())
    steps = [entry for entry in content["entries"] if entry[0] == "scheduled"]
    steps[1][3] = [7]  # tokens of the second step
    (tmp_path / "changed.json").write_text(json.dumps(content))
    assert main(["replay", str(tmp_path / "changed.json")]) == 1
    assert "differs: step 1" in capsys.readouterr().out


def test_replay_of_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert main(["replay", str(tmp_path / "x.json")]) == 1
    assert "not a flight recorder's dump" in capsys.readouterr().err


def test_chat_without_a_template_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="or send plain text with --raw"):
        chat.chat_encode(tmp_path)


def test_a_model_cannot_steer_the_terminal() -> None:
    assert chat.printable("a\x1b[31mb\tc\n\x07\x7fé🌶") == "a\ufffd[31mb\tc\n\ufffd\ufffdé🌶"
    assert chat.printable("\x9b31m") == "\ufffd31m"
