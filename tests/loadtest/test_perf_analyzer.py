"""Reading and feeding perf_analyzer; the real run is in tests/integration."""

import json
from pathlib import Path

import pytest
from trtdecode.errors import ConfigError, LoadError
from trtdecode.loadtest.perf_analyzer import check_string_file, read_profile, write_inputs
from trtdecode.loadtest.traffic import Shot

TEXT = b'{"prompt": "' + b"x" * 49 + b'"}'  # 63 bytes of JSON


def test_a_raw_string_file_needs_its_length_first(tmp_path: Path) -> None:
    assert len(TEXT) == 63
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"\x3f\x00\x00\x00" + TEXT)
    bad.write_bytes(TEXT)
    check_string_file(good)
    with pytest.raises(ConfigError, match=r"63 bytes .*\(63 \+ 4 = 67"):
        check_string_file(bad)


def test_inputs_keep_every_byte_of_the_prompt(tmp_path: Path) -> None:
    prompt = 'héllo "q" 🌶'
    write_inputs(tmp_path / "inputs.json", [Shot(0, prompt, 5), Shot(0, "x", 7)])
    entry, other = json.loads((tmp_path / "inputs.json").read_text("utf-8"))["data"]
    assert entry["text_input"] == [prompt]
    assert json.loads(entry["sampling_parameters"][0])["max_tokens"] == 5
    assert json.loads(other["sampling_parameters"][0])["max_tokens"] == 7


def test_figures_of_a_profile() -> None:
    ms = 1_000_000
    requests = [
        {"timestamp": 0, "response_timestamps": [100 * ms, 150 * ms, 200 * ms]},
        {"timestamp": 50 * ms, "response_timestamps": [250 * ms, 300 * ms]},
        {"timestamp": 60 * ms, "response_timestamps": []},
    ]
    figures = read_profile({"experiments": [{"requests": []}, {"requests": requests}]})
    assert (figures["requests"], figures["responses"]) == (2, 5)
    assert figures["duration_s"] == pytest.approx(0.3)
    assert figures["ttft_p50"] == pytest.approx(0.15)
    assert figures["itl_p95"] == pytest.approx(0.05)
    assert figures["e2e_p50"] == pytest.approx(0.225)


def test_a_profile_without_responses_is_an_error() -> None:
    with pytest.raises(LoadError, match="no request"):
        read_profile({"experiments": []})
