"""The Triton model of decoders: tensors <-> Request / TokenEvent."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from trtdecode.errors import ExecutorFailed, RequestError, TrtdecodeError, wire_status
from trtdecode.executor.gpu_factory import GpuOptions
from trtdecode.manifest import Manifest, read_manifest
from trtdecode.model_config import ModelConfig
from trtdecode.replica import Replica
from trtdecode.responder import Part, Responder
from trtdecode.sender import Sender, Stream
from trtdecode.server.control import ControlServer
from trtdecode.triton_inputs import INPUTS, Call, read_call
from trtdecode.triton_metrics import RESTARTS, MetricsPublisher, TritonMetricSink
from trtdecode.triton_outputs import OUTPUTS, render
from trtdecode.triton_tensors import TensorCache

#: How long `finalize` waits for what still runs; Triton's own unload has waited for the requests before it.
FINALIZE_TIMEOUT_S = 5.0
#: Characters (or ids) from which on a prompt is tokenised beside `execute` instead of in it: some milliseconds.
SLOW_PROMPT_LENGTH = 50_000


class TritonChannel:
    """A `sender.Channel` over a Triton response sender."""

    def __init__(self, response_sender: Any, tensors: TensorCache) -> None:
        self._sender = response_sender
        self._tensors = tensors

    def send(self, arrays: Mapping[str, npt.NDArray[Any]] | None, error: RequestError | None, *, final: bool) -> None:
        """See Channel."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        with self._tensors.lock:
            self._send(arrays, error, flags)

    def _send(self, arrays: Mapping[str, npt.NDArray[Any]] | None, error: RequestError | None, flags: int) -> None:
        if error is not None:
            self._sender.send(pb_utils.InferenceResponse(error=triton_error(error)), flags=flags)
        elif arrays is None:
            self._sender.send(flags=flags)
        else:
            tensors = [self._tensors.get(name, array) for name, array in arrays.items()]
            self._sender.send(pb_utils.InferenceResponse(output_tensors=tensors), flags=flags)

    def is_cancelled(self) -> bool:
        """See Channel."""
        return bool(self._sender.is_cancelled())


def triton_error(error: BaseException) -> Any:
    """Triton's form of an error, with its code."""
    return pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, wire_status(error).triton_code))


class _Answer:
    """Turns the parts of one call's answer into tensors."""

    def __init__(self, call: Call, batched: bool, decode: Callable[[int], str]) -> None:
        self.call = call
        self.num_input_tokens = 0  # known once the prompt is tokenised
        self._batched = batched
        self._decode = decode

    def __call__(self, part: Part) -> dict[str, npt.NDArray[Any]]:
        return render(
            self.call, part, num_input_tokens=self.num_input_tokens, batched=self._batched, decode=self._decode
        )


class DecoderModel:
    """One model instance: a replica with its own KV pool, its loop's thread, and the threads that talk to Triton."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Adds inputs, outputs and the decoupled policy, so that config.pbtxt is three lines."""
        given = config.as_dict()
        known_inputs = {entry["name"] for entry in given["input"]}
        known_outputs = {entry["name"] for entry in given["output"]}
        for spec in INPUTS:
            if spec.name not in known_inputs:
                dims = [-1] if spec.is_list else [1]
                config.add_input({"name": spec.name, "data_type": spec.data_type, "dims": dims, "optional": True})
        for output in OUTPUTS:
            if output.name not in known_outputs:
                config.add_output({"name": output.name, "data_type": output.data_type, "dims": list(output.dims)})
        config.set_model_transaction_policy({"decoupled": True})
        if given.get("max_batch_size", 0) > 0 and "dynamic_batching" not in given:
            config.set_dynamic_batching()  # a burst arrives in one `execute`
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
            self._config = ModelConfig.from_triton(raw, task=manifest.spec.task)
            for warning in self._config.warnings:
                self._log.log_warn(f"{self._name}: {warning}")
            self._replica = Replica.load(
                version_dir,
                self._config.serving,
                device_kind=args["model_instance_kind"],
                device_id=int(args["model_instance_device_id"]),
                gpu_options=GpuOptions(
                    graphs=self._config.cuda_graphs,
                    graph_batch_sizes=self._config.graph_batch_sizes,
                    busy_wait=self._config.busy_wait_events,
                    engine_precision=self._config.engine_precision,
                ),
            )
        except TrtdecodeError as error:
            raise pb_utils.TritonModelException(f"{type(error).__name__}: {error}") from error
        self._is_batched = self._config.max_batch_size > 0
        self._num_warmups = self._config.num_warmup_requests
        serving = self._config.serving
        self._sender = Sender(self._log.log_error, serving.keepalive_ms / 1000, serving.max_send_delay_ms / 1000)
        self._tensors = TensorCache(pb_utils.Tensor)
        self._slow_intake = ThreadPoolExecutor(1, thread_name_prefix="trtdecode-intake")
        self._publisher = self._start_metrics(args["model_instance_name"])
        handlers = {
            "drain": self._drain,
            "resume": self._resume,
            "status": self._status,
            "inspect": self._inspect,
            "poll": self._poll,
        }
        self._control = ControlServer(args["model_instance_name"], handlers)
        self._log_what_loaded(manifest, time.monotonic() - begin)

    def _start_metrics(self, instance: str) -> MetricsPublisher | None:
        labels = {"model": self._name, "version": self._version, "instance": instance}
        try:
            sink = TritonMetricSink(pb_utils.MetricFamily, labels)
        except pb_utils.TritonModelException as error:  # the server runs with --allow-metrics=false
            self._log.log_info(f"{self._name}: no metrics ({error})")
            return None
        sink.add(RESTARTS.name, {}, float(os.environ.get("TRTDECODE_RESTARTS", "0") or 0))
        return MetricsPublisher(self._replica.metrics, sink, self._log.log_error)

    def _log_what_loaded(self, manifest: Manifest, seconds: float) -> None:
        config = self._config
        shape = "[1, 1]" if self._is_batched else "[1]"
        self._log.log_info(f"{self._name} version {self._version}: {self._replica.describe()}")
        self._log.log_info(
            f"{self._name}: {manifest.source} loaded in {seconds:.1f} s; tensors of shape {shape} (max_batch_size "
            f"{config.max_batch_size}), {config.instance_kind}, parameters {config.serving}"
        )

    def execute(self, requests: list[Any]) -> None:
        """Hands every request to the loop and returns at once; each gets exactly one final response later."""
        for request in requests:
            self._start(request)

    def _start(self, request: Any) -> None:
        channel = TritonChannel(request.get_response_sender(), self._tensors)
        is_warmup = self._num_warmups > 0
        self._num_warmups -= is_warmup
        try:
            call = read_call(
                {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
                json.loads(request.parameters() or "{}"),
                batched=self._is_batched,
                vocab_size=self._replica.spec.vocab_size,
                defaults=self._replica.default_params,
            )
            if is_warmup and not call.prompt:
                call = self._warmup_call()
        except Exception as error:
            if not is_warmup:
                self._fail(Stream(Responder(1, stream=False), channel, lambda part: {}), error)
                return
            self._log.log_warn(f"{self._name}: a warm-up request is not valid ({error}); one token is generated")
            call = self._warmup_call()
        answer = _Answer(call, self._is_batched, self._replica.tokenizer.token_text)
        stream = Stream(Responder(call.params.n, stream=call.stream), channel, answer)
        self._sender.add(stream)
        timeout_ms = call.timeout_ms or request.timeout() / 1000
        arguments = (stream, answer, timeout_ms, request.request_id())
        if len(call.prompt) > SLOW_PROMPT_LENGTH or call.params.guided:
            self._slow_intake.submit(self._admit, *arguments)  # the next requests do not wait for it
        else:
            self._admit(*arguments)

    def _warmup_call(self) -> Call:
        """What zero data stands for: a prompt of one BOS-like token. An error would fail the load (and 2.51 often
        crashes with it)."""
        spec = self._replica.spec
        token_id = spec.bos_token_id if spec.bos_token_id is not None else next(iter(spec.eos_token_ids), 0)
        return Call([token_id], dataclasses.replace(self._replica.default_params, max_tokens=1))

    def _admit(self, stream: Stream, answer: _Answer, timeout_ms: float, caller_id: str) -> None:
        """Tokenises and submits. Whatever goes wrong ends this request alone."""
        try:
            prompt_ids = self._replica.encode(answer.call.prompt)
            answer.num_input_tokens = len(prompt_ids)
            samples = self._replica.samples(
                prompt_ids,
                answer.call.params,
                on_event=lambda event: self._sender.push(stream, event),
                is_cancelled=lambda: stream.is_cancelled,
                timeout_ms=timeout_ms,
                caller_id=caller_id,
                trace_id=answer.call.trace_id,
            )
            self._replica.submit(samples)
        except Exception as error:
            self._fail(stream, error)

    def _fail(self, stream: Stream, error: Exception) -> None:
        if not isinstance(error, RequestError):  # a fault of ours: say so in the log, and never lose the request
            self._log.log_error(f"{self._name}: request could not be taken in: {error!r}")
            error = ExecutorFailed(f"request could not be taken in: {error!r}")
        self._sender.add(stream)
        self._sender.fail(stream, error)

    def _drain(self, command: dict[str, Any]) -> dict[str, Any]:
        """Refuses new work, then waits for (or cancels) what runs, until every response has been sent."""
        timeout_s = float(command.get("timeout_s", 30.0))
        begin = time.monotonic()
        self._log.log_info(f"{self._name}: draining{' with cancel' if command.get('cancel') else ''}")
        self._replica.drain(cancel=bool(command.get("cancel")), timeout_s=timeout_s)
        while self._sender.num_live and time.monotonic() - begin < timeout_s + 1.0:
            time.sleep(0.01)
        live = self._sender.num_live
        self._log.log_info(f"{self._name}: drained, {live} requests left")
        return {"drained": live == 0, "live": live}

    def _resume(self, _command: dict[str, Any]) -> dict[str, Any]:
        self._replica.resume()
        return {}

    def _inspect(self, _command: dict[str, Any]) -> dict[str, Any]:
        return self._replica.inspect()

    def _poll(self, _command: dict[str, Any]) -> dict[str, Any]:
        self._sender.poll_soon()
        return {}

    def _status(self, _command: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": self._name,
            "version": self._version,
            "server_pid": os.getppid(),
            "live": self._sender.num_live,
            "draining": self._replica.is_draining,
            "executor": self._replica.describe(),
        }

    def finalize(self) -> None:
        """Ends what still runs, with a final response each, and frees the runtime."""
        self._control.close()
        self._slow_intake.shutdown()
        self._replica.drain(cancel=True, timeout_s=FINALIZE_TIMEOUT_S)
        left = self._sender.close(FINALIZE_TIMEOUT_S)
        if self._publisher is not None:
            self._publisher.close()
        self._tensors.clear()
        self._replica.close()
        self._log.log_info(f"{self._name} version {self._version}: finalized, {left} requests left")


class _TritonLogHandler(logging.Handler):
    """Sends our log records to Triton's log."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        write = {logging.ERROR: self._logger.log_error, logging.WARNING: self._logger.log_warn}
        write.get(min(record.levelno, logging.ERROR), self._logger.log_info)(self.format(record))


def route_logging(logger: Any) -> None:
    """Sends our log records to Triton's log from now on."""
    ours = logging.getLogger("trtdecode")
    ours.handlers = [_TritonLogHandler(logger)]
    ours.setLevel(logging.INFO)
    ours.propagate = False
