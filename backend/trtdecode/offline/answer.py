"""Lines for a generating model, with the bodies and answers of the gateway: offline and online are the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from trtdecode.errors import ManifestError
from trtdecode.gateway.answers import Answer, Sample
from trtdecode.gateway.chat import chat_response
from trtdecode.gateway.completions import completion_response
from trtdecode.gateway.errors import invalid
from trtdecode.gateway.sampling import chat_parameters, completion_parameters
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest
from trtdecode.offline.files import BatchLine
from trtdecode.offline.line import check_url, result_of, validated
from trtdecode.replica import Completion, Replica
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.chat_ids import ChatEncoder
from trtdecode.triton_outputs import logprobs_json

Body = TypeVar("Body", ChatRequest, CompletionRequest)

CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"


class Answerer:
    """Answers lines on one generating replica: enough requests in flight to fill the loop's batches.

    Args:
        model: the name that bodies must ask for.
        max_in_flight: requests handed to the loop at a time; twice `max_num_seqs` keeps its batches full.
    """

    def __init__(self, replica: Replica, model: str, max_in_flight: int = 128) -> None:
        self._max_in_flight = max_in_flight
        self._replica = replica
        self._model = model
        try:
            self._chat: ChatEncoder | None = ChatEncoder(replica.tokenizer)
        except ManifestError:
            self._chat = None  # a base model: completions only

    def answers(self, lines: Iterable[BatchLine]) -> Iterator[dict[str, Any]]:
        """Output lines as they finish. At most `max_in_flight` lines are held, however many there are."""
        remaining = iter(lines)
        running: set[Future[dict[str, Any]]] = set()
        pool = ThreadPoolExecutor(self._max_in_flight, thread_name_prefix="trtdecode-batch")
        try:
            while True:
                while len(running) < self._max_in_flight and (line := next(remaining, None)) is not None:
                    running.add(pool.submit(self.answer, line))
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            # Left early (Ctrl-C): what has not started never will; what runs is cancelled when the replica closes.
            pool.shutdown(wait=False, cancel_futures=True)

    def answer(self, line: BatchLine) -> dict[str, Any]:
        """The output line of one request; may be called by many threads."""
        return result_of(line, lambda request_id: self._body(line, request_id))

    def _body(self, line: BatchLine, request_id: str) -> dict[str, Any]:
        check_url(line, (CHAT_URL, COMPLETION_URL))
        if line.url == CHAT_URL:
            return self._chat_body(self._validated(ChatRequest, line.body), request_id)
        return self._completion_body(self._validated(CompletionRequest, line.body), request_id)

    def _validated(self, kind: type[Body], raw: Any) -> Body:
        body = validated(kind, raw, self._model)
        if body.stream:
            raise invalid("stream", "stream: got true; a batch has no streams, leave it out")
        return body

    def _chat_body(self, body: ChatRequest, request_id: str) -> dict[str, Any]:
        if self._chat is None:
            raise invalid("model", f"model {self._model!r} has no chat template; use {COMPLETION_URL}")
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or []] if body.tool_choice != "none" else []
        ids = self._chat.encode(messages, tools=tools or None)
        answer = self._generate(ids, chat_parameters(body), body.n or 1)
        return chat_response(body, answer, request_id)

    def _completion_body(self, body: CompletionRequest, request_id: str) -> dict[str, Any]:
        prompts: Sequence[str | list[int]] = body.prompts
        answers = [self._generate(prompt, completion_parameters(body), body.n or 1) for prompt in prompts]

        def echo(number: int) -> str:
            prompt = prompts[number]
            return prompt if isinstance(prompt, str) else self._replica.tokenizer.decode(prompt)

        return completion_response(body, answers, request_id, echo)

    def _generate(self, prompt: str | list[int], sampling: dict[str, Any], num_samples: int) -> Answer:
        replica = self._replica
        params = SamplingParams.from_mapping(
            {**sampling, "n": num_samples}, spec_vocab_size=replica.spec.vocab_size, defaults=replica.default_params
        )
        ids = replica.encode(prompt)
        completions = replica.generate(ids, params)
        prompt_logprobs = None
        if (echoed := completions[0].prompt_logprobs) is not None:
            prompt_logprobs = json.loads(logprobs_json(echoed, replica.tokenizer.token_text))
        return Answer([self._sample(completion) for completion in completions], len(ids), prompt_logprobs)

    def _sample(self, completion: Completion) -> Sample:
        assert completion.finish_reason is not None, "a completion has ended"
        logprobs = json.loads(logprobs_json(completion.logprobs, self._replica.tokenizer.token_text))
        return Sample(completion.text, completion.finish_reason.value, len(completion.token_ids), logprobs)
