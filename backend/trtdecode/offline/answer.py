"""One line of a batch -> its result, with the bodies and answers of the gateway: offline and online are the same."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from trtdecode.errors import InvalidRequest, ManifestError, RequestError, wire_status
from trtdecode.gateway.answers import Answer, Sample
from trtdecode.gateway.chat import chat_response
from trtdecode.gateway.completions import completion_response
from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.sampling import chat_parameters, completion_parameters
from trtdecode.gateway.schemas import ChatRequest, CompletionRequest, Sampling
from trtdecode.offline.files import BatchLine
from trtdecode.replica import Completion, Replica
from trtdecode.sampling.params import SamplingParams
from trtdecode.text.chat_ids import ChatEncoder
from trtdecode.triton_outputs import logprobs_json

Body = TypeVar("Body", bound=Sampling)

CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"


class Answerer:
    """Answers lines on one replica; `answer` may be called by many threads.

    Args:
        model: the name that bodies must ask for.
    """

    def __init__(self, replica: Replica, model: str) -> None:
        self._replica = replica
        self._model = model
        try:
            self._chat: ChatEncoder | None = ChatEncoder(replica.tokenizer)
        except ManifestError:
            self._chat = None  # a base model: completions only

    def answer(self, line: BatchLine) -> dict[str, Any]:
        """The output line of one request: a body with status 200, or an error body with its status."""
        request_id = uuid.uuid4().hex
        try:
            status, body = 200, self._body(line, request_id)
        except GatewayError as error:
            status, body = error.status, error.body
        except RequestError as error:
            param = error.field if isinstance(error, InvalidRequest) else None
            failed = GatewayError(wire_status(error).http_status, str(error), param=param)
            status, body = failed.status, failed.body
        return {
            "id": f"batch_req_{request_id}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": body},
            "error": None,
        }

    def _body(self, line: BatchLine, request_id: str) -> dict[str, Any]:
        if line.method != "POST":
            raise invalid("method", f"method: got {line.method!r}; must be POST")
        if line.url == CHAT_URL:
            return self._chat_body(self._validated(ChatRequest, line.body), request_id)
        if line.url == COMPLETION_URL:
            return self._completion_body(self._validated(CompletionRequest, line.body), request_id)
        raise invalid("url", f"url: got {line.url!r}; must be {CHAT_URL} or {COMPLETION_URL}")

    def _validated(self, kind: type[Body], raw: Any) -> Body:
        try:
            body = kind.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = [str(part) for part in first["loc"]]
            if "field" in first.get("ctx", {}):
                path.append(first["ctx"]["field"])
            field = ".".join(path) or "body"
            raise invalid(field, f"{field}: {first['msg']}") from None
        if body.model != self._model:
            raise GatewayError(404, f"model: got {body.model!r}; this run serves {self._model!r}", param="model")
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
