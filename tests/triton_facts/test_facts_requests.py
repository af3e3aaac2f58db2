"""What a Python model sees of a request, and what Triton's front ends decide before it (DESIGN section 9)."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trtdecode.server.launch import TritonServer

pytestmark = pytest.mark.triton_server


def wait_for(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.02)


def ask(server: TritonServer, model: str, **fields: Any) -> Any:
    answer = server.client.generate(model, {"text_input": "report", **fields})
    assert answer.status == 200, answer.body
    return json.loads(answer.json()["text_output"])


def test_version_is_in_the_known_range(probe_server: TritonServer) -> None:
    version = tuple(int(part) for part in probe_server.client.call("GET", "/v2").json()["version"].split(".")[:2])
    assert (2, 51) <= version < (3, 0), f"tritonserver {version}: the facts were verified with 2.51; look at failures"


def test_unknown_scalar_fields_arrive_as_parameters(probe_server: TritonServer) -> None:
    report = ask(probe_server, "probe", colour="red", count=3, ratio=0.5, flag=True)
    assert report["parameters"] == {"colour": "red", "count": 3, "ratio": 0.5, "flag": True}


def test_unknown_list_field_is_refused_by_triton(probe_server: TritonServer) -> None:
    answer = probe_server.client.generate("probe", {"text_input": "report", "colours": ["red"]})
    assert answer.status == 400
    assert "colours" in answer.json()["error"]


def test_nested_parameters_object_behaves_like_fields(probe_server: TritonServer) -> None:
    assert ask(probe_server, "probe", parameters={"colour": "red"})["parameters"] == {"colour": "red"}
    answer = probe_server.client.generate("probe", {"text_input": "report", "parameters": {"stop": [","]}})
    assert answer.status == 400


def test_json_lists_fill_variable_tensors(probe_server: TritonServer) -> None:
    assert ask(probe_server, "probe", words=["a", "b\u0000c", "é"])["words"] == ["a", "b\u0000c", "é"]


@pytest.mark.parametrize("value", ["text", 1.5, True, {"a": 1}, None])
def test_wrong_json_type_is_tritons_own_error(probe_server: TritonServer, value: Any) -> None:
    answer = probe_server.client.generate("probe", {"text_input": "report", "number": value})
    assert answer.status == 500
    assert "Unable to parse 'data'" in answer.json()["error"]


def test_generate_passes_priority_and_timeout_on_as_mere_parameters(probe_server: TritonServer) -> None:
    report = ask(probe_server, "probe", priority=2, timeout=5_000_000)
    assert report["parameters"] == {"priority": 2, "timeout": 5_000_000}
    assert report["timeout"] == 0


def test_over_grpc_priority_is_invisible_and_timeout_is_not(probe_server: TritonServer) -> None:
    import tritonclient.grpc as grpcclient

    results: queue.Queue[Any] = queue.Queue()
    tensor = grpcclient.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([b"report"], object))
    with grpcclient.InferenceServerClient(probe_server.grpc_address) as client:
        client.start_stream(lambda result, error: results.put(error or result))
        client.async_stream_infer("probe", [tensor], priority=2, timeout=5_000_000, parameters={"colour": "red"})
        report = json.loads(results.get(timeout=10).as_numpy("text_output")[0])
        client.stop_stream()
    assert report["timeout"] == 5_000_000
    assert not report["has_priority"]
    assert report["parameters"] == {"colour": "red"}


def test_cuda_graph_spec_reaches_the_model(probe_server: TritonServer) -> None:
    config = ask(probe_server, "graphs")["config"]
    assert config["max_batch_size"] == 0
    assert config["optimization"]["cuda"]["graphs"] is True
    assert [spec["batch_size"] for spec in config["optimization"]["cuda"]["graph_spec"]] == [1]


def test_warm_up_runs_before_any_client_with_an_empty_text(probe_server: TritonServer) -> None:
    seen = ask(probe_server, "warm")["seen"]
    assert seen[0] == ["", ""]


def test_infer_refuses_a_decoupled_model(probe_server: TritonServer) -> None:
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["report"]}
    answer = probe_server.client.call("POST", "/v2/models/probe/infer", {"inputs": [tensor]})
    assert answer.status == 501
    assert "decoupled" in answer.json()["error"]


def test_generate_wants_exactly_one_response(probe_server: TritonServer) -> None:
    body = {"text_input": json.dumps({"do": "stream", "n": 2, "interval": 0.01})}
    answer = probe_server.client.generate("probe", body)
    assert answer.status == 200, "the status line was sent before the second response arrived"
    assert "exactly 1 response" in answer.json()["error"]


def test_reschedule_is_refused_for_decoupled_models(probe_server: TritonServer) -> None:
    probe_server.client.generate("probe", {"text_input": json.dumps({"do": "reschedule"})})
    wait_for(lambda: "RELEASE_RESCHEDULE, while the model is not configured" in probe_server.log_path.read_text())


def test_a_collected_metric_family_makes_the_next_update_raise(probe_server: TritonServer) -> None:
    answer = probe_server.client.generate("probe", {"text_input": json.dumps({"do": "lost_family"})})
    assert answer.json()["text_output"].startswith("raised")


def test_batched_models_take_generate_with_plain_fields(probe_server: TritonServer) -> None:
    assert ask(probe_server, "batched", words=["a", "b"])["words"] == ["a", "b"]
