"""`parameters` of config.pbtxt: parsed, limited, and refused by name."""

from __future__ import annotations

import dataclasses

import pytest
from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError


def test_defaults_are_the_dataclass_defaults() -> None:
    assert ServingConfig.from_parameters({}) == ServingConfig()


def test_every_field_can_be_set_from_its_own_text() -> None:
    """Booleans, numbers and words as Triton hands them over: strings."""
    changed = {"max_context_len": "128", "kv_cache_fraction": "0.25", "executor": "torch", "overlap": "false"}
    config = ServingConfig.from_parameters(changed)
    assert (config.max_context_len, config.kv_cache_fraction, config.executor) == (128, 0.25, "torch")
    assert config.overlap is False
    defaults = {field.name: str(getattr(ServingConfig(), field.name)) for field in dataclasses.fields(ServingConfig)}
    assert ServingConfig.from_parameters(defaults) == ServingConfig()


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("2KiB", 2048), ("3M", 3 << 20), ("1GiB", 1 << 30), ("1 gb", 1 << 30), ("2TB", 2 << 40)],
)
def test_sizes_take_binary_suffixes(text: str, size: int) -> None:
    assert ServingConfig.from_parameters({"kv_cache_bytes": text}).kv_cache_bytes == size


@pytest.mark.parametrize(
    ("key", "text", "limit"),
    [
        ("executor", "cpu", "must be one of auto, openvino, tensorrt, torch"),
        ("precision", "fp4", "must be one of auto, f32"),
        ("kv_cache_bytes", "-1", "must be a size in bytes"),
        ("kv_cache_bytes", "1.5GiB", "must be a size in bytes"),
        ("kv_cache_fraction", "1.5", "must be a number from 0 to 0.98"),
        ("kv_cache_fraction", "nan", "must be a number from 0 to 0.98"),
        ("max_num_seqs", "0", "must be an integer from 1 to 4096"),
        ("max_num_seqs", "8.0", "must be an integer from 1 to 4096"),
        ("max_num_seqs", "", "must be an integer from 1 to 4096"),
        ("max_queue_size", "-5", "must be an integer from 1"),
        ("default_timeout_ms", "soon", "must be a number from 0"),
        ("default_timeout_ms", "inf", "must be a number from 0"),
        ("enable_prefix_caching", "yes", "must be true or false"),
    ],
)
def test_a_bad_value_names_key_value_and_limit(key: str, text: str, limit: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServingConfig.from_parameters({key: text})
    assert str(caught.value).startswith(f"parameters.{key}: got {text!r}; {limit}")


def test_an_unknown_key_names_the_nearest_and_the_allowed_set() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown key 'max_seqs'; did you mean max_num_seqs.* allowed: attention, build"
    ):
        ServingConfig.from_parameters({"max_seqs": "3"})
    with pytest.raises(ConfigError, match="unknown key 'zzz'; allowed: "):
        ServingConfig.from_parameters({"zzz": "3"})


def test_tritons_own_parameters_pass_through() -> None:
    assert ServingConfig.from_parameters({"FORCE_CPU_ONLY_INPUT_TENSORS": "no"}) == ServingConfig()


@pytest.mark.parametrize(
    "parameters",
    [
        {"kv_cache_bytes": "1GiB", "kv_cache_fraction": "0.5"},
        {"max_num_seqs": "600", "max_num_batched_tokens": "512"},
        {"default_timeout_ms": "2000", "max_timeout_ms": "1000"},
    ],
)
def test_values_that_contradict_each_other_are_refused(parameters: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(parameters))):
        ServingConfig.from_parameters(parameters)
