"""Fields of config.pbtxt beside `parameters`: what a decoder takes, warns about and refuses."""

from __future__ import annotations

from typing import Any

import pytest
from trtdecode.errors import ConfigError
from trtdecode.model_config import DEFAULT_WORKSPACE_BYTES, ModelConfig


def config(**fields: Any) -> ModelConfig:
    return ModelConfig.from_triton({"name": "m", "max_batch_size": 0, **fields})


def test_the_minimal_config() -> None:
    made = config()
    assert (made.name, made.max_batch_size, made.warnings) == ("m", 0, ())
    assert (made.cuda_graphs, made.graph_batch_sizes, made.busy_wait_events) == (True, (), False)
    assert (made.engine_precision, made.max_workspace_size_bytes) == ("", DEFAULT_WORKSPACE_BYTES)


def test_parameters_are_read_in_tritons_form() -> None:
    assert config(parameters={"max_num_seqs": {"string_value": "7"}}).serving.max_num_seqs == 7


def test_plain_dynamic_batching_is_fine() -> None:
    empty_policy = {"timeout_action": "REJECT", "default_timeout_microseconds": "0", "max_queue_size": 0}
    batching = {"preferred_batch_size": [], "max_queue_delay_microseconds": 0, "default_queue_policy": empty_policy}
    assert config(dynamic_batching=batching).warnings == ()


@pytest.mark.parametrize(
    ("batching", "field"),
    [
        ({"priority_levels": "3"}, "priority_levels"),
        ({"default_queue_policy": {"max_queue_size": 6}}, "default_queue_policy"),
        ({"default_queue_policy": {"default_timeout_microseconds": "1000"}}, "default_queue_policy"),
        ({"priority_queue_policy": {"1": {"max_queue_size": 2}}}, "priority_queue_policy"),
    ],
)
def test_a_queue_policy_warns_and_names_our_parameters(batching: dict[str, Any], field: str) -> None:
    [warning] = config(dynamic_batching=batching).warnings
    assert field in warning
    assert "max_queue_size, default_timeout_ms and priority_levels" in warning


def test_delays_warn_on_a_decoder_and_not_on_an_encoder() -> None:
    batching = {"max_queue_delay_microseconds": 500, "preferred_batch_size": [4, 8]}
    [warning] = config(dynamic_batching=batching).warnings
    assert "preferred_batch_size, max_queue_delay_microseconds" in warning
    encoder = ModelConfig.from_triton({"name": "m", "dynamic_batching": batching}, task="embed")
    assert (encoder.warnings, encoder.preferred_batch_sizes, encoder.max_queue_delay_us) == ((), (4, 8), 500)


def test_preserve_ordering_is_refused_on_a_decoder() -> None:
    with pytest.raises(ConfigError, match="preserve_ordering: got true; must be false"):
        config(dynamic_batching={"preserve_ordering": True})
    ModelConfig.from_triton({"name": "m", "dynamic_batching": {"preserve_ordering": True}}, task="embed")


def test_what_an_encoder_refuses_and_warns_about() -> None:
    def encoder(**fields: Any) -> ModelConfig:
        return ModelConfig.from_triton({"name": "m", "max_batch_size": 4, **fields}, task="embed")

    with pytest.raises(ConfigError, match="decoupled: got true; an encoder sends one response a request"):
        encoder(model_transaction_policy={"decoupled": True})
    assert encoder(model_transaction_policy={"decoupled": False}).warnings == ()
    given = {key: {"string_value": value} for key, value in (("num_threads", "2"), ("kv_cache_bytes", "1MiB"))}
    (warning,) = encoder(parameters=given).warnings
    assert warning.startswith(
        "parameters kv_cache_bytes: encoders do not read them; known: compute_precision, executor"
    )


def test_sequence_batching_is_refused() -> None:
    with pytest.raises(ConfigError, match="sequence_batching: not supported"):
        config(sequence_batching={"max_sequence_idle_microseconds": 1})


def test_cuda_fields() -> None:
    cuda = {"graphs": True, "graph_spec": [{"batch_size": 4}, {"batch_size": 1}, {"batch_size": 4}]}
    made = config(optimization={"cuda": {**cuda, "busy_wait_events": True}})
    assert (made.cuda_graphs, made.graph_batch_sizes, made.busy_wait_events) == (True, (1, 4), True)
    assert config(optimization={"cuda": {"graphs": False, "busy_wait_events": True}}).cuda_graphs is False


@pytest.mark.parametrize("spec", [{"batch_size": 0}, {"batch_size": 2, "input": {"x": {}}}])
def test_a_bad_graph_spec_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="graph_spec"):
        config(optimization={"cuda": {"graph_spec": [spec]}})


def accelerator(name: str = "tensorrt", **parameters: str) -> dict[str, Any]:
    return {"execution_accelerators": {"gpu_execution_accelerator": [{"name": name, "parameters": parameters}]}}


def test_the_tensorrt_accelerator_maps_to_build_options() -> None:
    made = config(optimization=accelerator(precision_mode="fp16", max_workspace_size_bytes="4194304"))
    assert (made.engine_precision, made.max_workspace_size_bytes) == ("f16", 4_194_304)


@pytest.mark.parametrize(
    ("optimization", "text"),
    [
        (accelerator(precision_mode="FP4"), "precision_mode: got 'FP4'; must be one of FP32"),
        (accelerator(max_workspace_size_bytes="lots"), "max_workspace_size_bytes: got 'lots'"),
        (accelerator(precision="FP16"), "unknown key 'precision'; did you mean precision_mode"),
        (accelerator("openvino"), "got 'openvino'; only tensorrt is known"),
    ],
)
def test_a_bad_accelerator_is_refused(optimization: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(optimization=optimization)


def test_instance_kinds() -> None:
    assert config(instance_group=[{"kind": "KIND_GPU", "gpus": [0]}]).instance_kind == "KIND_GPU"
    with pytest.raises(ConfigError, match="instance_group: got kinds KIND_CPU, KIND_GPU"):
        config(instance_group=[{"kind": "KIND_GPU"}, {"kind": "KIND_CPU"}])
    with pytest.raises(ConfigError, match="must be one of KIND_AUTO"):
        config(instance_group=[{"kind": "KIND_TPU"}])


def test_warm_up_requests_are_counted() -> None:
    samples = [{"name": "a", "batch_size": 1}, {"name": "b", "batch_size": 2, "count": 3}]
    assert config(model_warmup=samples).num_warmup_requests == 7
    assert config().num_warmup_requests == 0
