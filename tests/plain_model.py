"""A model for Triton's own Python backend with the tensors of Triton's vLLM backend, and none of our extras.

It answers with `max_tokens` numbers, a response each. The load test must be able to measure such a model too.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        for name, kind in (("stream", "TYPE_BOOL"), ("sampling_parameters", "TYPE_STRING")):
            config.add_input({"name": name, "data_type": kind, "dims": [1], "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            sampling = pb_utils.get_input_tensor_by_name(request, "sampling_parameters").as_numpy()[0]
            for number in range(json.loads(sampling)["max_tokens"]):
                text = np.array([f"{number} ".encode()], dtype=np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
