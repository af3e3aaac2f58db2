"""Of an encoder: does the real server, batching, answer what the reference executor computes from the same graph?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from trtdecode.config import ServingConfig
from trtdecode.promote.gate import CANDIDATE, Context, Gate
from trtdecode.server.client import ServerClient

TEXTS = (
    "A cat sits on the mat.",
    "Stock prices fell for the third day in a row, and nobody could say why.",
    "x",
    "Grüße aus Zürich! 日本語 🌶",
    "def f(x):\n    return x + 1",
    "a longer text " * 20,
)
#: The output that is compared, by task: raw numbers, before any activation.
_OUTPUTS = {"embed": "embedding", "rerank": "logits", "classify": "logits"}


def ask(context: Context) -> tuple[bool, str, dict[str, Any]]:
    """Asks for every text at once, so that texts share batches; then for one that must be refused."""
    manifest = context.manifest
    client, timeout = context.server().client, context.limits.contract.timeout_s
    bodies = [_body(text, manifest.spec.task) for text in TEXTS]
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(lambda body: client.generate(CANDIDATE, body, timeout), bodies))
    failed = [answer for answer in answers if answer.status != 200]
    if failed:
        return False, f"a text is answered with {failed[0].status}: {failed[0].body.decode(errors='replace')[:200]}", {}
    got = np.array([answer.json()[_OUTPUTS[manifest.spec.task]] for answer in answers], np.float32)
    wanted = _reference(context, bodies)
    error = float(np.abs(got.reshape(wanted.shape) - wanted).mean() / np.abs(wanted).mean())
    limit = context.limits.parity.max_mean_abs_error
    figures = {"relative_error": error, "num_texts": len(TEXTS)}
    if not error <= limit:
        return False, f"the mean error, relative to the outputs, is {error:.3g}, limit {limit:g}", figures
    if problem := _refusal(client, timeout):
        return False, problem, figures
    return True, f"{len(TEXTS)} texts in shared batches equal the reference, relative error {error:.1e}", figures


def _body(text: str, task: str) -> dict[str, Any]:
    pair = {} if task == "embed" else {"text_pair": TEXTS[0]}
    return {"text_input": text, "truncate": True, **pair}


def _reference(context: Context, bodies: list[dict[str, Any]]) -> npt.NDArray[np.float32]:
    """The torch executor's rows, one text at a time."""
    from trtdecode.encoder.replica import EncoderReplica
    from trtdecode.encoder.tensors import EncoderCall

    replica = EncoderReplica.load(context.version_dir, ServingConfig(executor="torch"))
    try:
        rows: list[Any] = []
        for body in bodies:
            pairs = (body["text_pair"],) if "text_pair" in body else ()
            rows += replica.run(replica.inputs_of(EncoderCall((body["text_input"],), pairs, truncate=True)))
        return np.stack(rows)
    finally:
        replica.close()


def _refusal(client: ServerClient, timeout: float) -> str:
    """What is wrong with the answer to a request without a text; empty when it is a 400 that names the field."""
    answer = client.generate(CANDIDATE, {"truncate": True}, timeout)
    if answer.status == 400 and b"text_input" in answer.body:
        return ""
    return f"a request without a text is answered with {answer.status}, not with a 400 that names text_input"


GATE = Gate("encoding", ask)
