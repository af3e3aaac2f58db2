"""One encoder replica: tokenizer and executor of a model version. Needs no Triton, as `trtdecode.replica` does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trtdecode.config import ServingConfig
from trtdecode.encoder.plan import plan_runs
from trtdecode.encoder.scores import Scores
from trtdecode.encoder.tensors import EncoderCall
from trtdecode.errors import ConfigError, ExecutorFailed, InvalidRequest, RequestError
from trtdecode.executor.choice import ExecutorChoice
from trtdecode.executor.encoder_base import EncoderExecutor, pack
from trtdecode.executor.encoder_factory import create_encoder
from trtdecode.manifest import ModelSpec, read_manifest
from trtdecode.metrics import LoopMetrics
from trtdecode.text.encoder_tokenizer import EncoderInput, EncoderTokenizer

#: Characters a token of the longest text: what is longer would be tokenised for seconds while its batch waits.
MAX_CHARS_PER_TOKEN = 256

_log = logging.getLogger(__name__)


class EncoderReplica:
    """Everything that serves one encoder version on one device. Not thread-safe: `execute` is the only caller."""

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: EncoderTokenizer | None,
        executor: EncoderExecutor,
        choice: ExecutorChoice,
        config: ServingConfig,
    ) -> None:
        self.spec = spec
        self.max_context_len = _max_context_len(spec, config)
        self.metrics = LoopMetrics()
        self._tokenizer = tokenizer
        self._executor = executor
        self._choice = choice
        self._max_tokens = config.max_num_batched_tokens

    @classmethod
    def load(
        cls,
        version_dir: Path,
        config: ServingConfig | None = None,
        *,
        device_kind: str = "CPU",
        device_id: int = 0,
    ) -> EncoderReplica:
        """Checks the version folder and loads it. Raises ManifestError or ConfigError, see `create_encoder`."""
        chosen = config or ServingConfig()
        manifest = read_manifest(version_dir)
        if manifest.spec.task == "generate":
            raise ConfigError(f"{version_dir}: a generating model, not an encoder; load it with trtdecode.replica")
        executor, choice = create_encoder(chosen, manifest, version_dir, device_kind=device_kind, device_id=device_id)
        tokenizer = EncoderTokenizer.from_dir(version_dir, _max_context_len(manifest.spec, chosen))
        executor.execute(pack([[0]]))  # kernels are compiled in the first run: not in a client's
        return cls(manifest.spec, tokenizer, executor, choice, chosen)

    def describe(self) -> str:
        """One line for the log: which executor, why, and what it has."""
        facts = ", ".join(f"{name} {value}" for name, value in self._executor.describe().items())
        return f"{self._choice}; {facts}; {self.spec.task}, up to {self.max_context_len} tokens a text"

    def inputs_of(self, call: EncoderCall) -> tuple[EncoderInput, ...]:
        """The call's texts as ids.

        Raises:
            InvalidRequest: a text longer than the context (unless `truncate`) or than MAX_CHARS_PER_TOKEN times that
                in characters, without tokens, or not Unicode; or a text for a model without a tokenizer.
        """
        inputs = call.inputs or self._tokenized(call)
        for item in inputs:
            if len(item) > self.max_context_len:
                hint = "" if call.inputs else "; send truncate = true to have longer texts cut"
                limit = f"must be at most {self.max_context_len} (this model's longest text){hint}"
                raise InvalidRequest("input_ids" if call.inputs else "text_input", f"{len(item)} tokens", limit)
        return inputs

    def _tokenized(self, call: EncoderCall) -> tuple[EncoderInput, ...]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise InvalidRequest("text_input", call.texts[0], "this model has no tokenizer; send input_ids")
        texts = self._bounded(call, "text_input")
        pairs: Sequence[str | None] = self._bounded(call, "text_pair") or [None] * len(texts)
        return tuple(
            tokenizer.encode(text, pair, truncate=call.truncate) for text, pair in zip(texts, pairs, strict=True)
        )

    def _bounded(self, call: EncoderCall, field: str) -> list[str]:
        """Texts of a length that can be tokenised in passing: longer ones are cut with `truncate`, else refused."""
        limit = self.max_context_len * MAX_CHARS_PER_TOKEN
        texts = call.texts if field == "text_input" else call.pairs
        longest = max(map(len, texts), default=0)
        if longest > limit and not call.truncate:
            hint = (
                f"must be at most {limit} for a text of {self.max_context_len} tokens; send truncate = true to cut it"
            )
            raise InvalidRequest(field, f"{longest} characters", hint)
        return [text[:limit] for text in texts]

    def run(self, inputs: Sequence[EncoderInput]) -> list[Scores | RequestError]:
        """The graph's output row f32 [hidden or labels] for each input, or why it has none.

        The inputs of a run that fails are tried again one by one, so that only those at fault have none.
        """
        results: list[Scores | RequestError] = [ExecutorFailed("not run")] * len(inputs)
        runs = plan_runs([len(item) for item in inputs], self._max_tokens)
        while runs:
            places = runs.pop()
            try:
                rows = self._run_once([inputs[place] for place in places])
            except Exception as error:  # whatever the runtime raises
                _log.error("a run of %d texts failed: %r", len(places), error)
                self.metrics.counters["trtdecode_step_failures_total"] += 1
                if len(places) > 1:
                    runs += [[place] for place in places]
                else:
                    results[places[0]] = ExecutorFailed(f"the executor failed on this text: {error}")
                continue
            for place, row in zip(places, rows, strict=True):
                results[place] = row
        return results

    def _run_once(self, inputs: Sequence[EncoderInput]) -> Scores:
        batch = pack([item.ids for item in inputs], [item.token_types for item in inputs])
        begin = time.perf_counter()
        rows = self._executor.execute(batch)
        seconds = time.perf_counter() - begin
        if not np.isfinite(rows).all():
            raise ArithmeticError("its output holds NaN or infinity")
        counters, observations = self.metrics.counters, self.metrics.observations
        counters["trtdecode_steps_total"] += 1
        counters["trtdecode_requests_total"] += len(inputs)
        counters["trtdecode_prompt_tokens_total"] += len(batch.input_ids)
        observations["trtdecode_step_tokens"].append(len(batch.input_ids))
        observations["trtdecode_execute_seconds"].append(seconds)
        return rows

    def close(self) -> None:
        """Frees the executor. Idempotent."""
        self._executor.close()


def _max_context_len(spec: ModelSpec, config: ServingConfig) -> int:
    return min(config.max_context_len or spec.max_context_len, spec.max_context_len)
