"""Makes the executor of an encoder: `factory.py` without KV cache and engines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError
from trtdecode.executor.choice import ExecutorChoice, choose_executor
from trtdecode.executor.devices import find_devices
from trtdecode.executor.encoder_base import EncoderExecutor
from trtdecode.executor.factory import graph_file_of, verify_graph
from trtdecode.manifest import Manifest

#: `precision: auto` takes the first that the version has.
_PRECISIONS = ("f32", "int8", "int4")


def create_encoder(
    config: ServingConfig, manifest: Manifest, version_dir: Path, *, device_kind: str, device_id: int
) -> tuple[EncoderExecutor, ExecutorChoice]:
    """Chooses, checks the files that will be opened against the manifest, and loads.

    Encoders run on openvino or torch; engines of their graphs are built and reported, not served.

    Raises:
        ConfigError: KIND_GPU without a GPU or torch, executor tensorrt, or a precision the executor does not have.
        ManifestError: the version lacks the precision, or its files are not what the manifest says.
    """
    if config.executor == "tensorrt":
        raise ConfigError("executor: tensorrt does not serve encoders; use torch on a GPU, or openvino on a CPU")
    devices = dataclasses.replace(find_devices(), tensorrt_flavour="")
    choice = choose_executor(config, manifest, devices, device_kind=device_kind, device_id=device_id)
    if choice.device != "cpu":
        choice = dataclasses.replace(choice, alternative="tensorrt does not serve encoders")
    graph_file = graph_file_of(config, manifest, _PRECISIONS)
    verify_graph(config, manifest, version_dir, graph_file)
    compute = "f32" if config.compute_precision == "auto" else config.compute_precision
    if choice.executor == "openvino":
        from trtdecode.executor.openvino_encoder import OpenVinoEncoder

        path = version_dir / graph_file
        return OpenVinoEncoder(path, compute_precision=compute, num_threads=config.num_threads), choice
    from trtdecode.executor.torch_encoder import TorchEncoder

    return TorchEncoder(version_dir / graph_file, device=choice.device, dtype=compute), choice
