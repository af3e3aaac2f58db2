"""What Triton's tutorials show: a Python-backend model that calls transformers, one request after another."""

from __future__ import annotations

import json
import os

import numpy as np
import torch
import transformers
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        folder, file = os.path.split(parameters["gguf"]["string_value"])
        torch.set_num_threads(int(parameters["threads"]["string_value"]))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        self.model.eval()

    def execute(self, requests: list) -> list:
        responses = []
        for request in requests:
            ids = torch.from_numpy(pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy().astype(np.int64))
            limit = int(pb_utils.get_input_tensor_by_name(request, "max_tokens").as_numpy()[0])
            with torch.inference_mode():
                output = self.model.generate(
                    ids[None],
                    attention_mask=torch.ones_like(ids)[None],
                    do_sample=False,
                    min_new_tokens=limit,
                    max_new_tokens=limit,
                    pad_token_id=0,
                )
            tensor = pb_utils.Tensor("output_ids", output[0, len(ids) :].numpy().astype(np.int32))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
