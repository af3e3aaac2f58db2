"""A plain Python model whose behaviour is the JSON in `text_input`; it shows what Triton does, not what we do."""

import gc
import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def text(value):
    content = value if isinstance(value, str) else json.dumps(value)
    return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([content.encode()], object))])


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "words", "data_type": "TYPE_STRING", "dims": [-1], "optional": True})
        config.add_input({"name": "number", "data_type": "TYPE_INT32", "dims": [1], "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        self.seen = []  # request ids and texts of all requests, warm-up included
        self.cancelled = {}  # stream's name -> responses sent when is_cancelled() first said so
        self.family = pb_utils.MetricFamily(
            name=f"probe_{args['model_name']}_seconds", description="t", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.histogram = self.family.Metric(labels={"model": args["model_name"]}, buckets=[0.1, 1.0])

    def execute(self, requests):
        for request in requests:
            raw = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0]
            self.seen.append([request.request_id(), raw.decode()])
            if raw == b"" and self.config["name"] == "warm_error":
                error = pb_utils.TritonError("no text", pb_utils.TritonError.INVALID_ARG)
                request.get_response_sender().send(pb_utils.InferenceResponse(error=error), flags=FINAL)
                continue
            command = json.loads(raw) if raw.startswith(b"{") else {"do": "report"}
            getattr(self, command.pop("do"))(request, request.get_response_sender(), **command)

    def report(self, request, sender):
        words = pb_utils.get_input_tensor_by_name(request, "words")
        answer = {
            "parameters": json.loads(request.parameters()),
            "timeout": request.timeout(),
            "has_priority": hasattr(request, "priority"),
            "words": None if words is None else [word.decode() for word in words.as_numpy().reshape(-1)],
            "config": self.config,
            "seen": self.seen,
            "cancelled": self.cancelled,
        }
        sender.send(text(answer), flags=FINAL)

    def stream(self, request, sender, name="", n=5, interval=0.05, silent=0.0):
        def run():
            time.sleep(silent)
            for index in range(n):
                if sender.is_cancelled() and name not in self.cancelled:
                    self.cancelled[name] = index
                sender.send(text(f"{name}{index} "))
                self.histogram.observe(interval)
                time.sleep(interval)
            sender.send(flags=FINAL)

        threading.Thread(target=run).start()

    def block(self, request, sender, seconds):
        time.sleep(seconds)
        sender.send(text("done"), flags=FINAL)

    def lost_family(self, request, sender):
        metric = pb_utils.MetricFamily(name="lost", description="t", kind=pb_utils.MetricFamily.COUNTER).Metric()
        gc.collect()
        try:
            metric.increment(1)
            sender.send(text("updated"), flags=FINAL)
        except Exception as error:
            sender.send(text(f"raised {error}"), flags=FINAL)

    def reschedule(self, request, sender):
        request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        sender.send(text("sent"), flags=FINAL)

    def finalize(self):
        print(f"FINALIZED {self.config['name']}", flush=True)
