"""One replica: tokenizer, executor, sampler and loop of a model version. Needs no Triton: the stub, the batch command,
the benches and the tests all serve through it."""

from __future__ import annotations

import queue
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtdecode.config import ServingConfig
from trtdecode.errors import ConfigError, InvalidRequest
from trtdecode.executor.base import Executor
from trtdecode.executor.choice import ExecutorChoice
from trtdecode.executor.factory import create_executor
from trtdecode.executor.gpu_factory import GpuOptions
from trtdecode.manifest import ModelSpec, read_manifest
from trtdecode.metrics import LoopMetrics
from trtdecode.overlap import make_loop
from trtdecode.request import FinishReason, Request, TokenEvent, TokenLogprob
from trtdecode.sampling.params import SamplingParams
from trtdecode.sampling.sampler import Sampler
from trtdecode.text.grammar import Grammars
from trtdecode.text.tokenizer import Tokenizer, stop_strings

#: No tokenizer turns a text into less than a quarter of (bytes / longest token) tokens; normalisation is why a quarter.
_BYTES_MARGIN = 4


@dataclass(slots=True)
class Completion:
    """One finished sample."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    cumulative_logprob: float = 0.0


class Replica:
    """Everything that serves one model version on one device.

    `submit`, `drain` and the helpers may be called by any thread; events come on the loop's thread.
    """

    def __init__(
        self, spec: ModelSpec, tokenizer: Tokenizer, executor: Executor, choice: ExecutorChoice, config: ServingConfig
    ) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.executor = executor
        self.config = config
        self._choice = choice
        self._grammars = Grammars(tokenizer, spec.vocab_size, spec.eos_token_ids)
        self._loop = make_loop(executor, Sampler(spec.eos_token_ids), config, spec)
        self._max_context_len = min(config.max_context_len or spec.max_context_len, spec.max_context_len)
        longest = max(len(tokenizer.token_bytes(token_id)) for token_id in range(tokenizer.vocab_size))
        self._max_prompt_bytes = self._max_context_len * longest * _BYTES_MARGIN
        # With levels 1..n, a request that names none is in the middle.
        self.default_params = SamplingParams(priority=(config.priority_levels + 1) // 2)
        self._loop.start()

    @classmethod
    def load(
        cls,
        version_dir: Path,
        config: ServingConfig | None = None,
        *,
        device_kind: str = "CPU",
        device_id: int = 0,
        gpu_options: GpuOptions | None = None,
    ) -> Replica:
        """Checks the version folder and loads it; the keywords are `create_executor`'s.

        Raises:
            ManifestError, ConfigError, UnsupportedError: what does not fit and what to do.
        """
        chosen = config or ServingConfig()
        manifest = read_manifest(version_dir)
        if manifest.spec.task != "generate":
            raise ConfigError(
                f"{version_dir}: task {manifest.spec.task}, an encoder; it generates nothing: serve it with "
                "`trtdecode serve`, or load it with trtdecode.encoder.replica"
            )
        tokenizer = Tokenizer.from_dir(version_dir)
        executor, choice = create_executor(
            chosen, manifest, version_dir, device_kind=device_kind, device_id=device_id, gpu_options=gpu_options
        )
        return cls(manifest.spec, tokenizer, executor, choice, chosen)

    @property
    def metrics(self) -> LoopMetrics:
        return self._loop.metrics

    @property
    def is_draining(self) -> bool:
        return self._loop.admission.is_draining

    def describe(self) -> str:
        """One line for the log: which executor, why, and what it has."""
        facts = ", ".join(f"{name} {value}" for name, value in self.executor.describe().items())
        blocks = f"{self.executor.num_blocks} KV blocks of {self.executor.block_size}"
        return f"{self._choice}; {facts}; {blocks}; context {self._max_context_len}"

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a prompt.

        Raises:
            InvalidRequest: no token at all, or a text so long that no tokenisation of it could fit the context.
        """
        if not isinstance(prompt, str):
            return list(prompt)
        num_bytes = len(prompt.encode("utf-8", "surrogatepass"))
        if num_bytes > self._max_prompt_bytes:
            raise InvalidRequest(
                "text_input", f"{num_bytes} bytes", f"cannot fit a context of {self._max_context_len} tokens"
            )
        return self.tokenizer.encode_prompt(prompt)

    def samples(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        on_event: Callable[[TokenEvent], None],
        is_cancelled: Callable[[], bool] = bool,
        timeout_ms: float = 0.0,
        caller_id: str = "",
        trace_id: str = "",
    ) -> tuple[Request, ...]:
        """The `params.n` requests of one call: they share the prompt's list, its blocks and the seed.

        Args:
            timeout_ms: what the caller asks for; 0 takes `default_timeout_ms`, and `max_timeout_ms` caps it.

        Raises:
            InvalidRequest: priority out of `priority_levels`, a bad word without tokens, or a guide that is not valid.
        """
        self._check_priority(params)
        now = self._loop.clock()
        timeout = self._effective_timeout_ms(timeout_ms)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        stops = stop_strings(params)
        bad_word_ids = self.tokenizer.bad_word_ids(params.bad_words)
        samples: list[Request] = []
        for index in range(params.n):
            samples.append(
                Request(
                    prompt_ids,
                    params,
                    on_event,
                    seed,
                    arrival_time=now,
                    deadline=now + timeout / 1000 if timeout else None,
                    timeout_ms=timeout,
                    sample_index=index,
                    parent=samples[0] if samples else None,
                    is_cancelled=is_cancelled,
                    caller_id=caller_id,
                    trace_id=trace_id,
                    bad_word_ids=bad_word_ids,
                    guide=self._grammars.guide(params),
                    output=self.tokenizer.output(params, prompt_ids, self.spec.eos_token_ids, stops),
                )
            )
        return tuple(samples)

    def submit(self, samples: tuple[Request, ...]) -> None:
        """Accepts all samples or none.

        Raises:
            InvalidRequest, QueueFull, Draining: nothing was accepted and no event will come.
        """
        self._loop.submit(*samples)

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, timeout_ms: float = 0.0
    ) -> Iterator[TokenEvent]:
        """Events of one call, of all its samples, until the last has ended; closing the iterator cancels them.

        Raises:
            RequestError: not accepted, or the first sample that ended with an error.
        """
        chosen = params or self.default_params
        events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        cancelled: list[bool] = []
        samples = self.samples(
            self.encode(prompt),
            chosen,
            on_event=events.put,
            is_cancelled=lambda: bool(cancelled),
            timeout_ms=timeout_ms,
        )
        self.submit(samples)
        num_running = len(samples)
        try:
            while num_running:
                event = events.get()
                num_running -= event.is_final
                if event.error is not None:
                    raise event.error
                yield event
        finally:
            cancelled.append(True)

    def generate(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, timeout_ms: float = 0.0
    ) -> list[Completion]:
        """Runs one call to its end; one completion a sample. Raises what `stream` raises."""
        completions = [Completion() for _ in range((params or self.default_params).n)]
        for event in self.stream(prompt, params, timeout_ms=timeout_ms):
            completion = completions[event.request.sample_index]
            completion.text += event.text
            completion.token_ids += event.token_ids
            completion.logprobs += event.logprobs or []
            completion.prompt_logprobs = event.prompt_logprobs or completion.prompt_logprobs
            completion.finish_reason = event.finish_reason
            completion.cumulative_logprob = event.request.cumulative_logprob
        return completions

    def drain(self, *, cancel: bool = False, timeout_s: float = 30.0) -> bool:
        """Takes no new work and waits for what runs; after the timeout (or at once with `cancel`) cancels it.

        Returns True when every accepted request has had its final event.
        """
        return self._loop.drain(cancel=cancel, timeout=timeout_s)

    def inspect(self) -> dict[str, Any]:
        """The map of KV blocks; see `kv_cache/block_map.py`. Raises TimeoutError while a step takes long."""
        return self._loop.inspect()

    def resume(self) -> None:
        """Takes new work again after a drain."""
        self._loop.resume()

    def close(self) -> None:
        """Cancels what runs, stops the loop's thread and frees the executor. Idempotent."""
        self._loop.stop()
        self.executor.close()

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_priority(self, params: SamplingParams) -> None:
        levels = self.config.priority_levels
        if levels and not 1 <= params.priority <= levels:
            raise InvalidRequest("priority", params.priority, f"must be from 1 to {levels} (priority_levels)")

    def _effective_timeout_ms(self, asked_ms: float) -> float:
        timeout = asked_ms or self.config.default_timeout_ms
        cap = self.config.max_timeout_ms
        return min(timeout or cap, cap) if cap else timeout
