"""Sizes of known models, by hand."""

import json

import pytest
from trtdecode.errors import ConfigError
from trtdecode.plan.capacity import Model, bounds
from trtdecode.plan.devices import load_devices
from trtdecode.plan.fit import fit_efficiency
from trtdecode.plan.model_source import model_from_fields
from trtdecode.plan.report import config_pbtxt, plan, recommend

LLAMA_70B = Model(80, 8192, 28672, 64, 8, 128, 128256)
LLAMA_8B = Model(32, 4096, 14336, 32, 8, 128, 128256)
SMOLLM2 = Model(30, 576, 1536, 9, 3, 64, 49152, tied_embedding=True)


def test_grouped_query_attention_is_counted_by_kv_heads() -> None:
    # The classic mistake multiplies by the 64 query heads: 10.7 GB.
    assert LLAMA_70B.kv_bytes_per_token("fp16") * 4096 == 1_342_177_280


def test_weights_of_known_models() -> None:
    assert LLAMA_70B.num_weights == 70_553_706_496 - 161 * 8192  # the published count less the norms
    assert LLAMA_8B.num_weights == 8_030_261_248 - 65 * 4096
    assert SMOLLM2.num_weights == 134_479_872


def test_quantised_layers_keep_a_16_bit_vocabulary() -> None:
    vocabulary = 2 * 128256 * 4096
    assert LLAMA_8B.weight_bytes("int8") == LLAMA_8B.num_linear_weights + 2 * vocabulary


def test_decode_at_one_sequence_is_bandwidth_over_bytes() -> None:
    device = load_devices()["H100-SXM"]
    found = bounds(LLAMA_8B, device, "fp16", "fp16", context=1024, sequences=1)
    read = LLAMA_8B.weight_bytes("fp16") + LLAMA_8B.kv_bytes_per_token("fp16") * 1024
    assert found.decode_tokens_per_s == pytest.approx(3350e9 / read)
    assert found.limit == "memory bandwidth"


def test_compute_bounds_large_batches_of_short_sequences() -> None:
    device = load_devices()["L40S"]
    found = bounds(LLAMA_8B, device, "fp16", "fp16", context=16, sequences=4096)
    assert found.limit == "compute"
    assert found.decode_step == pytest.approx(2 * LLAMA_8B.head_weights * 4096 / 362e12)


def test_what_does_not_fit_says_zero_and_the_plan_adds_ranks() -> None:
    devices = load_devices()
    assert bounds(LLAMA_70B, devices["H100-SXM"], "fp16", "fp16", 4096, 8).max_sequences == 0
    rows = plan(LLAMA_70B, [devices["H100-SXM"]], context=4096, concurrency=8, precisions=["fp16"])
    assert [(row.bounds.ranks, row.bounds.max_sequences) for row in rows] == [(2, 8)]
    with pytest.raises(ConfigError, match=r"int4 weights need 36\.\d GiB"):
        plan(LLAMA_70B, [devices["T4"]], context=1_000_000, concurrency=1)


def test_fp8_is_left_out_below_sm_89() -> None:
    devices = load_devices()
    rows = plan(LLAMA_8B, [devices["A100-80G"]], context=2048, concurrency=16)
    assert "fp8" not in {row.precision for row in rows}
    assert "fp8" in {row.precision for row in plan(LLAMA_8B, [devices["L4"]], context=2048, concurrency=16)}


def test_recommendation_and_cost() -> None:
    rows = plan(LLAMA_8B, load_devices().values(), context=2048, concurrency=64, efficiency=0.5)
    best = recommend(rows)
    assert best.cost_per_million_tokens <= rows[0].cost_per_million_tokens * 1.1
    tokens_an_hour = best.tokens_per_s * best.replicas * 3600
    assert best.cost_per_million_tokens == pytest.approx(best.price_per_hour / tokens_an_hour * 1e6)
    assert 'value { string_value: "2048" }' in config_pbtxt(best, 2048)


def test_efficiency_is_measured_over_bound(tmp_path) -> None:
    device = load_devices()["L4"]
    one = bounds(SMOLLM2, device, "int8", "fp16", 256, 1).decode_tokens_per_s
    many = bounds(SMOLLM2, device, "int8", "fp16", 256, 32).decode_tokens_per_s
    file = tmp_path / "bench.json"
    measured = {"1": {"decode_tokens_per_s": one * 0.4}, "32": {"decode_tokens_per_s": many * 0.9}}
    file.write_text(json.dumps({"systems": {"ours": measured}}))
    assert fit_efficiency(file, "ours", SMOLLM2, device, "int8", "fp16", 256) == pytest.approx(0.6)
    with pytest.raises(ConfigError, match="no system 'theirs'; it holds ours"):
        fit_efficiency(file, "theirs", SMOLLM2, device, "int8", "fp16", 256)


def test_sizes_from_config_json() -> None:
    gpt2 = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257}
    assert model_from_fields(gpt2, "x").num_weights == 12 * 12 * 768 * 768 + 50257 * 768
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        model_from_fields({"hidden_size": 8, "num_attention_heads": 2, "vocab_size": 4}, "x")


@pytest.mark.parametrize(("field", "value"), [("price_per_hour", -1), ("sm", "x"), ("tflops", {"int8": 1})])
def test_a_wrong_device_names_field_and_value(tmp_path, field: str, value: object) -> None:
    fields = {"sm": 89, "memory_gib": 24, "bandwidth_gb_s": 300, "tflops": {"fp16": 100}, "price_per_hour": 1}
    fields[field] = value

    def toml(value: object) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k} = {v}" for k, v in value.items()) + "}"
        return repr(value)

    file = tmp_path / "devices.toml"
    file.write_text("[X]\n" + "\n".join(f"{k} = {toml(v)}" for k, v in fields.items()))
    with pytest.raises(ConfigError, match=f"'X'.*{field}"):
        load_devices(file)
