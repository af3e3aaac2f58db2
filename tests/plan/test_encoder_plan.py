"""Encoders' sizes from their own files, the roofline of a batch by hand, and the config.pbtxt that follows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, text_format
from safetensors import safe_open
from triton_fixtures import RunningServer
from tritonclient.grpc import model_config_pb2
from trtbuild.graph.registry import BY_ARCHITECTURE, ENCODER_FAMILIES
from trtbuild.pipeline import import_checkpoint
from trtdecode.cli import main
from trtdecode.errors import ConfigError
from trtdecode.model_config import ModelConfig
from trtdecode.plan.devices import Device
from trtdecode.plan.encoder_capacity import Encoder, batch_seconds, batching
from trtdecode.plan.encoder_report import encoder_config_pbtxt, plan_encoder, recommend_encoder
from trtdecode.plan.fit import fit_encoder_efficiency
from trtdecode.plan.model_source import encoder_from_fields, is_encoder, read_config

#: 8 layers of 12 x 64^2 weights: 393,216 that multiply; 512 rows more.
SMALL = Encoder(8, 64, 256, 4, vocab_size=512, num_positions=512)
#: A million bytes and a billion FLOPs a second: seconds are read off.
SLOW = Device("slow", 89, memory_bytes=1e9, bandwidth=1e6, flops={"fp16": 1e9}, price_per_hour=3.6)


def test_minilms_weights_are_those_of_its_file(minilm_folder: Path) -> None:
    encoder = encoder_from_fields(*read_config(minilm_folder))
    with safe_open(minilm_folder / "model.safetensors", "numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118  (not a mapping)
    matrices = [shape for name, shape in shapes.items() if len(shape) == 2 and "pooler" not in name]
    ids = [shape for name, shape in shapes.items() if name.endswith("position_ids")]
    assert encoder.num_weights == sum(a * b for a, b in matrices) - sum(a * b for a, b in ids)
    assert (encoder.num_layers, encoder.num_positions, encoder.num_labels) == (6, 512, 0)


def test_flops_and_activations_by_hand() -> None:
    assert SMALL.num_linear_weights == 8 * 12 * 64**2
    assert SMALL.num_weights == 8 * 12 * 64**2 + 512 * 64
    assert SMALL.flops(10) == 2 * 393_216 * 10 + 4 * 8 * 64 * 100
    assert SMALL.activation_bytes(3, 10) == 2 * 3 * 10 * (64 + 2 * 256)  # the MLP is wider than ten tokens' scores
    assert SMALL.activation_bytes(1, 512) == 2 * (512 * 4 * 64 + 4 * 512**2 * 2)


def test_a_classifiers_head_and_gated_mlps_count() -> None:
    fields = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2}
    fields |= {"vocab_size": 10, "max_position_embeddings": 20}
    bert = encoder_from_fields({**fields, "architectures": ["BertModel"], "type_vocab_size": 2}, "x")
    assert bert.num_weights == 2 * (4 * 64 + 2 * 128) + (10 + 20 + 2) * 8
    labels = {"0": "a", "1": "b", "2": "c"}
    sorter = {**fields, "architectures": ["RobertaForSequenceClassification"], "pad_token_id": 1, "id2label": labels}
    roberta = encoder_from_fields(sorter, "x")
    assert roberta.num_weights == 2 * (4 * 64 + 2 * 128) + 64 + 8 * 3 + (10 + 20 + 1) * 8
    assert roberta.num_positions == 18
    modern = encoder_from_fields({**fields, "architectures": ["ModernBertModel"]}, "x")
    assert modern.num_weights == 2 * (4 * 64 + 3 * 128) + 10 * 8
    with pytest.raises(ConfigError, match="x: intermediate_size is 0; must be a positive integer"):
        encoder_from_fields({**fields, "intermediate_size": 0}, "x")


def test_encoders_are_told_from_decoders_as_the_importer_tells_them() -> None:
    encoders = {name for family in ENCODER_FAMILIES for name in family.architectures}
    assert {name for name in BY_ARCHITECTURE if is_encoder({"architectures": [name]})} == encoders
    assert is_encoder({"model_type": "xlm-roberta"})
    assert not is_encoder({"model_type": "llama"})


def test_a_batch_reads_the_weights_once_and_multiplies_for_each_text() -> None:
    read = SMALL.num_weights * 2 / 1e6
    assert batch_seconds(SMALL, SLOW, "fp16", 1, 10) == read > SMALL.flops(10) / 1e9
    assert batch_seconds(SMALL, SLOW, "fp16", 1000, 10) == pytest.approx(1000 * SMALL.flops(10) / 1e9)
    with pytest.raises(ConfigError, match="--precision: got 'int4'"):
        batch_seconds(SMALL, SLOW, "int4", 1, 10)


def test_sizes_follow_from_the_ridge_the_latency_and_the_clients() -> None:
    """Reading takes 0.852 s and a text of 10 tokens 8.07 ms: the ridge is at 105.6 texts."""
    found = batching(SMALL, SLOW, "fp16", tokens=10, concurrency=10_000, latency=10.0)
    assert found is not None
    # 512 texts take 4.13 s, half of the latency is 5 s; 1,024 would take 8.3 s.
    assert (found.max_batch_size, found.preferred_batch_sizes, found.limit) == (512, (128, 256, 512), "compute")
    assert found.batch_seconds == pytest.approx(512 * SMALL.flops(10) / 1e9)
    assert found.max_queue_delay == pytest.approx(128 * SMALL.flops(10) / 1e9 / 2)
    few = batching(SMALL, SLOW, "fp16", tokens=10, concurrency=50, latency=10.0)
    assert few is not None
    # No more than 50 at a time: never a batch of 64, and none that arithmetic bounds.
    assert (few.max_batch_size, few.preferred_batch_sizes, few.limit) == (32, (32,), "memory bandwidth")
    half = batching(SMALL, SLOW, "fp16", tokens=10, concurrency=10_000, latency=10.0, efficiency=0.5)
    assert half is not None
    assert (half.max_batch_size, half.texts_per_s) == (256, pytest.approx(found.texts_per_s / 2))


def test_memory_bounds_a_batch_and_what_does_not_fit_is_none() -> None:
    tight = Device(
        "tight", 89, (SMALL.num_weights * 2 + 5 * SMALL.activation_bytes(1, 500)) / 0.9, 1e12, {"fp16": 1e15}, 1
    )
    found = batching(SMALL, tight, "fp16", tokens=500, concurrency=64, latency=10.0)
    assert found is not None
    assert found.max_batch_size == 4
    tiny = Device("tiny", 89, SMALL.num_weights * 2, 1e12, {"fp16": 1e15}, 1)
    assert batching(SMALL, tiny, "fp16", tokens=500, concurrency=1, latency=10.0) is None
    with pytest.raises(ConfigError, match=r"no device holds this encoder in these precisions \(0\.0 GiB in fp16\)"):
        plan_encoder(SMALL, [tiny], tokens=500, concurrency=1, latency=1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": 513}, "--context: got 513; this encoder's longest text has 512 tokens"),
        ({"concurrency": 0}, "--concurrency: got 0; must be at least 1"),
        ({"latency": 0.0}, "--latency-ms: got 0; must be above 0"),
    ],
)
def test_wrong_sizes_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batching(SMALL, SLOW, "fp16", **{"tokens": 10, "concurrency": 1, "latency": 1.0, **fields})


def read_pbtxt(text: str) -> tuple[dict[str, Any], ModelConfig]:
    """As Triton reads it, and as the backend reads that."""
    parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
    raw = json_format.MessageToDict(parsed, preserving_proto_field_name=True)
    raw["parameters"] = {key: {"string_value": value.string_value} for key, value in parsed.parameters.items()}
    return raw, ModelConfig.from_triton(raw, task="embed")


def test_the_config_is_one_that_triton_and_the_backend_take() -> None:
    rows = plan_encoder(SMALL, [SLOW], tokens=10, concurrency=10_000, latency=10.0)
    assert [row.precision for row in rows] == ["fp16", "bf16"]
    _, config = read_pbtxt(encoder_config_pbtxt(recommend_encoder(rows)))
    assert (config.max_batch_size, config.preferred_batch_sizes, config.warnings) == (512, (128, 256, 512), ())
    assert config.max_queue_delay_us == round(128 * SMALL.flops(10) / 1e9 / 2 * 1e6)
    assert (config.serving.compute_precision, config.serving.executor) == ("f16", "torch")
    assert config.serving.max_num_batched_tokens == 5120
    assert config.instance_kind == "KIND_GPU"
    assert rows[0].cost_per_million_tokens == pytest.approx(3.6 / (3600 * rows[0].tokens_per_s) * 1e6)


def test_without_a_ridge_nothing_waits() -> None:
    """Texts of 512 tokens: one is already past the ridge."""
    (row, _) = plan_encoder(SMALL, [SLOW], tokens=512, concurrency=8, latency=100.0)
    assert (row.batching.preferred_batch_sizes, row.batching.max_queue_delay) == ((1, 2, 4, 8), 0.0)
    raw, config = read_pbtxt(encoder_config_pbtxt(row))
    assert raw["dynamic_batching"] == {}
    assert (config.max_batch_size, config.max_queue_delay_us) == (8, 0)


def test_efficiency_is_measured_over_bound(tmp_path: Path) -> None:
    bench = tmp_path / "encoder.json"

    def row(tokens: int, batch: float, share: float) -> dict[str, Any]:
        rate = share * batch / batch_seconds(SMALL, SLOW, "fp16", batch, tokens)  # type: ignore[arg-type]
        return {"ratios": [2.0], "batched": {"texts_per_s": rate, "mean_batch_size": batch}}

    bench.write_text(json.dumps({"tokens": {"8": row(8, 9.5, 0.4), "32": row(32, 200.0, 0.9)}}))
    assert fit_encoder_efficiency(bench, SMALL, SLOW, "fp16") == pytest.approx(0.6)
    bench.write_text(json.dumps({"tokens": {"8": {"batched": {"texts_per_s": 3}}}}))
    with pytest.raises(ConfigError, match=r"tokens\.8 has no 'mean_batch_size'; make one with `scripts/bench encoder"):
        fit_encoder_efficiency(bench, SMALL, SLOW, "fp16")
    bench.write_text("[]")
    with pytest.raises(ConfigError, match="not a bench JSON"):
        fit_encoder_efficiency(bench, SMALL, SLOW, "fp16")


def test_command(minilm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", str(minilm_folder), "--device", "L4", "--concurrency", "64"]
    assert main([*arguments, "--config"]) == 0
    _, config = read_pbtxt(capsys.readouterr().out)
    # 45 MB in 150 us; 2.9 GFLOP a text of 128 tokens in 23.7 us: the ridge is at 6.3 texts.
    assert (config.max_batch_size, config.preferred_batch_sizes) == (64, (8, 16, 32, 64))
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "Weights 22.5 million; efficiency 0.60 (assumed" in shown
    assert "Recommended: L4, fp16" in shown
    assert main([*arguments, "--context", "600"]) == 1
    assert "--context: got 600; this encoder's longest text has 512 tokens" in capsys.readouterr().err
    assert main([*arguments, "--precision", "int8"]) == 1
    assert "--precision: got 'int8'; an encoder on a GPU is computed in fp16 or bf16" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("[]")
    assert main(["plan", str(tmp_path)]) == 1
    assert "config.json: must be an object" in capsys.readouterr().err


@pytest.mark.triton_server
def test_a_server_loads_the_recommended_config(
    make_server: Callable[..., RunningServer],
    minilm_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """But for the device and its type, which this machine may not have."""
    import_checkpoint(minilm_folder, tmp_path / "repository" / "minilm")
    assert main(["plan", str(minilm_folder), "--device", "L4", "--concurrency", "64", "--config"]) == 0
    text = capsys.readouterr().out.replace("KIND_GPU", "KIND_CPU").replace('"f16"', '"f32"')
    (tmp_path / "repository" / "minilm" / "config.pbtxt").write_text(text)
    body = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [2, 1], "data": ["a cat", "two cats"]}]}
    with make_server(tmp_path / "repository") as server:
        served = server.client.call("GET", "/v2/models/minilm/config").json()
        assert served["max_batch_size"] == 64
        assert served["dynamic_batching"]["preferred_batch_size"] == [8, 16, 32, 64]
        assert server.client.call("POST", "/v2/models/minilm/infer", body).status == 200
