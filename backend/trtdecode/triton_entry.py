"""What Triton calls: the model that the version's task needs, a decoder or an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtdecode.errors import TrtdecodeError
from trtdecode.manifest import ModelSpec, read_manifest
from trtdecode.triton_encoder import EncoderModel
from trtdecode.triton_model import DecoderModel


def _encoder_spec() -> ModelSpec | None:
    """The spec of the version being loaded if it is an encoder's; None for a decoder, and for a folder that
    `initialize` will refuse with its reason."""
    try:
        spec = read_manifest(Path(pb_utils.get_model_dir())).spec
    except TrtdecodeError:
        return None
    return spec if spec.task != "generate" else None


class TritonPythonModel:
    """One model instance."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Fills in what config.pbtxt leaves out."""
        spec = _encoder_spec()
        return DecoderModel.auto_complete_config(config) if spec is None else EncoderModel.complete(config, spec)

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the version. What it raises becomes Triton's reason for the failed load."""
        self._model = DecoderModel() if _encoder_spec() is None else EncoderModel()
        self._model.initialize(args)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """A decoder answers later, through response senders; an encoder now, one response a request."""
        return self._model.execute(requests)

    def finalize(self) -> None:
        """Ends what still runs and frees the runtime."""
        self._model.finalize()
