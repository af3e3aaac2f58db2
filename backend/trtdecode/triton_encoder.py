"""The Triton model of encoders: one response a request, in batches that Triton's dynamic batcher forms."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtdecode.encoder.replica import EncoderReplica
from trtdecode.encoder.tensors import input_specs, output_specs, read_encoder_call, render_rows
from trtdecode.errors import ConfigError, ExecutorFailed, RequestError, TrtdecodeError
from trtdecode.manifest import ModelSpec, read_manifest
from trtdecode.model_config import ModelConfig
from trtdecode.server.control import ControlServer
from trtdecode.text.encoder_tokenizer import EncoderInput
from trtdecode.triton_metrics import ENCODER_METRICS, MetricsPublisher, TritonMetricSink
from trtdecode.triton_model import route_logging, triton_error

#: Texts in one `execute` where config.pbtxt names no number: beyond it a CPU gains nothing and answers come later.
DEFAULT_MAX_BATCH_SIZE = 32


class EncoderModel:
    """One instance: a replica, called by Triton with one batch at a time."""

    @staticmethod
    def complete(config: Any, spec: ModelSpec) -> Any:
        """Adds inputs, outputs, a batch size and the dynamic batcher, so that config.pbtxt is two lines."""
        given = config.as_dict()  # a live view: the methods have no word for allow_ragged_batch
        known = {entry["name"] for entry in (*given["input"], *given["output"])}
        for tensor in input_specs(spec):
            if tensor.name not in known:
                entry = {"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)}
                config.add_input({**entry, "optional": True})
                given["input"][-1]["allow_ragged_batch"] = True  # ids of different lengths share a batch
        for tensor in output_specs(spec):
            if tensor.name not in known:
                config.add_output({"name": tensor.name, "data_type": tensor.data_type, "dims": list(tensor.dims)})
        if given.get("max_batch_size", 0) == 0:
            config.set_max_batch_size(DEFAULT_MAX_BATCH_SIZE)
        if given["max_batch_size"] > 1 and "dynamic_batching" not in given:
            # No delay by default: requests that arrive while a batch runs are the next one, and a lone one never waits.
            config.set_dynamic_batching()
        return config

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the version. What it raises becomes Triton's reason for the failed load."""
        self._log = pb_utils.Logger
        route_logging(self._log)
        raw = json.loads(args["model_config"])
        version_dir = Path(pb_utils.get_model_dir())
        self._name, self._version = args["model_name"], args["model_version"]
        begin = time.monotonic()
        try:
            manifest = read_manifest(version_dir)
            config = ModelConfig.from_triton(raw, task=manifest.spec.task)
            if config.max_batch_size < 1:
                raise ConfigError("max_batch_size: got 0; an encoder needs at least 1")
            self._replica = EncoderReplica.load(
                version_dir,
                config.serving,
                device_kind=args["model_instance_kind"],
                device_id=int(args["model_instance_device_id"]),
            )
        except TrtdecodeError as error:
            raise pb_utils.TritonModelException(f"{type(error).__name__}: {error}") from error
        for warning in config.warnings:
            self._log.log_warn(f"{self._name}: {warning}")
        self._is_running = threading.Lock()
        self._publisher = self._start_metrics(args["model_instance_name"])
        handlers = {"drain": self._drain, "resume": lambda _command: {}, "status": self._status}
        self._control = ControlServer(args["model_instance_name"], handlers)
        self._log.log_info(f"{self._name} version {self._version}: {self._replica.describe()}")
        self._log.log_info(
            f"{self._name}: {manifest.source} loaded in {time.monotonic() - begin:.1f} s; max_batch_size "
            f"{config.max_batch_size}, dynamic_batching {raw.get('dynamic_batching')}, parameters {config.serving}"
        )

    def _start_metrics(self, instance: str) -> MetricsPublisher | None:
        labels = {"model": self._name, "version": self._version, "instance": instance}
        try:
            sink = TritonMetricSink(pb_utils.MetricFamily, labels, ENCODER_METRICS)
        except pb_utils.TritonModelException as error:  # the server runs with --allow-metrics=false
            self._log.log_info(f"{self._name}: no metrics ({error})")
            return None
        return MetricsPublisher(self._replica.metrics, sink, self._log.log_error)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Runs the batch; what is wrong with one request becomes that request's error alone."""
        with self._is_running:
            calls = [self._read(request) for request in requests]
            inputs = [item for call in calls if not isinstance(call, RequestError) for item in call]
            rows = iter(self._replica.run(inputs))
            return [
                self._response(
                    request, call if isinstance(call, RequestError) else [(item, next(rows)) for item in call]
                )
                for request, call in zip(requests, calls, strict=True)
            ]

    def _read(self, request: Any) -> tuple[EncoderInput, ...] | RequestError:
        try:
            tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            return self._replica.inputs_of(read_encoder_call(tensors, self._replica.spec))
        except RequestError as error:
            return error
        except Exception as error:  # a fault of ours: say so in the log, and leave the neighbours alone
            self._log.log_error(f"{self._name}: request could not be taken in: {error!r}")
            return ExecutorFailed(f"request could not be taken in: {error!r}")

    def _response(self, request: Any, outcome: RequestError | list[tuple[EncoderInput, Any]]) -> Any:
        """The outputs that the request asks for, or its error: one text that failed fails its request."""
        if isinstance(outcome, RequestError):
            return pb_utils.InferenceResponse(error=triton_error(outcome))
        failures = [row for _, row in outcome if isinstance(row, RequestError)]
        if failures:
            return pb_utils.InferenceResponse(error=triton_error(failures[0]))
        arrays = render_rows(
            np.stack([row for _, row in outcome]), [len(item) for item, _ in outcome], self._replica.spec
        )
        wanted = request.requested_output_names()
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, array) for name, array in arrays.items() if name in wanted]
        )

    def _drain(self, command: dict[str, Any]) -> dict[str, Any]:
        """Waits for the batch that runs. Nothing is refused: Triton's unload and its shutdown wait for what they have
        queued, and a batch takes milliseconds."""
        idle = self._is_running.acquire(timeout=float(command.get("timeout_s", 30.0)))
        if idle:
            self._is_running.release()
        return {"drained": idle, "live": int(not idle)}

    def _status(self, _command: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self._name,
            "version": self._version,
            "server_pid": os.getppid(),
            "live": int(self._is_running.locked()),
            "draining": False,
        }

    def finalize(self) -> None:
        """Frees the runtime; Triton has waited for every request before it."""
        self._control.close()
        if self._publisher is not None:
            self._publisher.close()
        self._replica.close()
        self._log.log_info(f"{self._name} version {self._version}: finalized")
