"""The fields of Triton's model configuration that mean something to us, besides `parameters`.

The rules are DESIGN section 6's: what a field does for a decoder, what only warns, and what is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtdecode.config import TRITON_PARAMETERS, ServingConfig, unknown_key
from trtdecode.errors import ConfigError

INSTANCE_KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")
#: TensorRT's precision_mode (Triton's words) -> our build precision.
PRECISION_MODES = {"FP32": "f32", "FP16": "f16", "BF16": "bf16", "INT8": "int8", "FP8": "fp8"}
DEFAULT_WORKSPACE_BYTES = 1 << 30
#: The parameters that encoders read; queues and deadlines are Triton's own there.
ENCODER_PARAMETERS = frozenset({"executor", "precision", "compute_precision", "num_threads", "verify_checksums"}) | {
    "max_context_len",
    "max_num_batched_tokens",
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's configuration as the backend understands it."""

    name: str
    max_batch_size: int  # 0: tensors of shape [1]; >= 1: [1, 1]
    serving: ServingConfig
    instance_kind: str = "KIND_AUTO"
    cuda_graphs: bool = True  # optimization.cuda.graphs
    graph_batch_sizes: tuple[int, ...] = ()  # optimization.cuda.graph_spec; empty: the executor's own list
    busy_wait_events: bool = False  # optimization.cuda.busy_wait_events: spin instead of sleeping on the device
    engine_precision: str = ""  # execution_accelerators: tensorrt: precision_mode; empty: the manifest's
    max_workspace_size_bytes: int = DEFAULT_WORKSPACE_BYTES
    preferred_batch_sizes: tuple[int, ...] = ()  # dynamic_batching, for encoder models
    max_queue_delay_us: int = 0
    num_warmup_requests: int = 0  # so many come before any client's; see model_warmup
    warnings: tuple[str, ...] = ()  # said once at load

    @classmethod
    def from_triton(cls, raw: Mapping[str, Any], *, task: str = "generate") -> ModelConfig:
        """Reads the dict that Triton hands to `initialize` as JSON.

        Args:
            task: the manifest's task; a decoder ("generate") refuses or warns about what only encoders use.

        Raises:
            ConfigError: naming the field, its value and what to write instead.
        """
        name = str(raw.get("name", ""))
        decoder = task == "generate"
        max_batch_size = int(raw.get("max_batch_size", 0))
        batching = raw.get("dynamic_batching") or {}
        warnings = _check_batching(raw, batching, decoder=decoder)
        if not decoder:
            warnings += _check_encoder(raw)
        cuda = (raw.get("optimization") or {}).get("cuda") or {}
        precision, workspace = _tensorrt_accelerator(raw.get("optimization") or {})
        return cls(
            name=name,
            max_batch_size=max_batch_size,
            serving=ServingConfig.from_parameters(_parameters(raw)),
            instance_kind=_instance_kind(raw),
            # Triton writes `graphs: false` whether it was given or not: only a `cuda` message given turns them off.
            cuda_graphs=bool(cuda.get("graphs", False)) if cuda else True,
            graph_batch_sizes=_graph_batch_sizes(cuda.get("graph_spec") or ()),
            busy_wait_events=bool(cuda.get("busy_wait_events", False)),
            engine_precision=precision,
            max_workspace_size_bytes=workspace,
            preferred_batch_sizes=tuple(int(size) for size in batching.get("preferred_batch_size") or ()),
            max_queue_delay_us=int(batching.get("max_queue_delay_microseconds", 0) or 0),
            num_warmup_requests=sum(
                max(int(sample.get("count", 0)), 1) * max(int(sample.get("batch_size", 0)), 1)
                for sample in raw.get("model_warmup") or ()
            ),
            warnings=tuple(warnings),
        )


def _parameters(raw: Mapping[str, Any]) -> dict[str, str]:
    """`parameters` as Triton writes them: {"key": {"string_value": "text"}}."""
    parameters = {}
    for key, value in (raw.get("parameters") or {}).items():
        parameters[key] = str(value.get("string_value", "")) if isinstance(value, Mapping) else str(value)
    return parameters


def _check_batching(raw: Mapping[str, Any], batching: Mapping[str, Any], *, decoder: bool) -> list[str]:
    if raw.get("sequence_batching"):
        raise ConfigError("sequence_batching: not supported; requests are independent, remove it from config.pbtxt")
    if not decoder:
        return []
    if batching.get("preserve_ordering"):
        raise ConfigError(
            "dynamic_batching.preserve_ordering: got true; must be false for a generating model, where it would hold "
            "each short answer until every longer one before it has finished"
        )
    warnings = []
    if policy := _queue_policy_fields(batching):
        warnings.append(
            f"dynamic_batching.{', '.join(policy)}: a Triton queue policy hands requests over in polls of up to 500 ms "
            "and is blind to what already runs; use parameters max_queue_size, default_timeout_ms and priority_levels "
            "instead"
        )
    if delays := [key for key in ("preferred_batch_size", "max_queue_delay_microseconds") if batching.get(key)]:
        warnings.append(
            f"dynamic_batching.{', '.join(delays)}: only adds to the time to first token of a generating model, whose "
            "batches are formed at every step; remove it"
        )
    return warnings


def _check_encoder(raw: Mapping[str, Any]) -> list[str]:
    if (raw.get("model_transaction_policy") or {}).get("decoupled"):
        raise ConfigError(
            "model_transaction_policy.decoupled: got true; an encoder sends one response a request, remove it from "
            "config.pbtxt"
        )
    unread = sorted(set(_parameters(raw)) - ENCODER_PARAMETERS - TRITON_PARAMETERS)
    if not unread:
        return []
    return [
        f"parameters {', '.join(unread)}: encoders do not read them; known: {', '.join(sorted(ENCODER_PARAMETERS))}"
    ]


def _queue_policy_fields(batching: Mapping[str, Any]) -> list[str]:
    """The fields that switch Triton's queue policy on. Triton 64-bit integers may arrive as strings."""
    fields = [key for key in ("priority_levels", "priority_queue_policy") if _is_set(batching.get(key))]
    if any(_is_set(value) for value in (batching.get("default_queue_policy") or {}).values()):
        fields.append("default_queue_policy")
    return fields


def _is_set(value: Any) -> bool:
    return bool(value) and value not in ("0", "REJECT")


def _instance_kind(raw: Mapping[str, Any]) -> str:
    groups = raw.get("instance_group") or []
    kinds = {str(group.get("kind", "KIND_AUTO")) for group in groups} or {"KIND_AUTO"}
    if len(kinds) > 1:
        raise ConfigError(f"instance_group: got kinds {', '.join(sorted(kinds))}; must all be the same")
    kind = kinds.pop()
    if kind not in INSTANCE_KINDS:
        raise ConfigError(f"instance_group.kind: got {kind!r}; must be one of {', '.join(INSTANCE_KINDS)}")
    return kind


def _graph_batch_sizes(specs: Any) -> tuple[int, ...]:
    """Batch sizes to capture, ascending, without repeats."""
    sizes = set()
    for spec in specs:
        size = int(spec.get("batch_size", 0))
        if size < 1:
            raise ConfigError(f"optimization.cuda.graph_spec.batch_size: got {size}; must be at least 1")
        if spec.get("input") or spec.get("graph_lower_bound"):
            raise ConfigError(
                "optimization.cuda.graph_spec: got input or graph_lower_bound; only batch_size is used, a decode step "
                "has one token a sequence"
            )
        sizes.add(size)
    return tuple(sorted(sizes))


def _tensorrt_accelerator(optimization: Mapping[str, Any]) -> tuple[str, int]:
    """(build precision or "", workspace bytes) from `execution_accelerators`."""
    accelerators = optimization.get("execution_accelerators") or {}
    precision, workspace = "", DEFAULT_WORKSPACE_BYTES
    listed = (accelerators.get("gpu_execution_accelerator") or []) + (
        accelerators.get("cpu_execution_accelerator") or []
    )
    for accelerator in listed:
        if accelerator.get("name") != "tensorrt":
            raise ConfigError(
                f"optimization.execution_accelerators: got {accelerator.get('name')!r}; only tensorrt is known (the "
                "CPU executor is chosen with parameters.executor)"
            )
        known = {"precision_mode": _precision_mode, "max_workspace_size_bytes": _workspace}
        parameters = accelerator.get("parameters") or {}
        for key in parameters:
            if key not in known:
                raise ConfigError(unknown_key("optimization.execution_accelerators.tensorrt", key, known))
        precision = _precision_mode(parameters.get("precision_mode", "")) or precision
        workspace = _workspace(parameters.get("max_workspace_size_bytes", str(workspace)))
    return precision, workspace


def _precision_mode(text: str) -> str:
    if text and text.upper() not in PRECISION_MODES:
        raise ConfigError(
            f"execution_accelerators.tensorrt.precision_mode: got {text!r}; must be one of {', '.join(PRECISION_MODES)}"
        )
    return PRECISION_MODES[text.upper()] if text else ""


def _workspace(text: str) -> int:
    if not text.isdigit() or int(text) < 1 << 20:
        raise ConfigError(
            f"execution_accelerators.tensorrt.max_workspace_size_bytes: got {text!r}; must be at least {1 << 20} bytes"
        )
    return int(text)
