"""Chats -> token ids, with the tokenizer and the chat template of the model version that is served."""

from __future__ import annotations

from pathlib import Path

from trtdecode.errors import InvalidRequest
from trtdecode.gateway.errors import GatewayError, invalid
from trtdecode.gateway.schemas import ChatRequest
from trtdecode.text.chat_ids import ChatEncoder
from trtdecode.text.tokenizer import Tokenizer


class Prompts:
    """Renders chats. Reads the highest version of each model, again when another version appears."""

    def __init__(self, model_repository: Path | None) -> None:
        self._repository = model_repository
        self._loaded: dict[str, tuple[Path, Tokenizer, ChatEncoder | None]] = {}

    def chat_ids(self, model: str, body: ChatRequest) -> list[int]:
        """Token ids of a chat, ready to be answered; text from users can never become a special token.

        Raises:
            GatewayError: no such model, it has no chat template, or the template refuses these messages.
        """
        encoder = self._load(model)[2]
        if encoder is None:
            raise invalid("model", f"model {model!r} has no chat template; use /v1/completions")
        messages = [message.model_dump(exclude_none=True) for message in body.messages]
        tools = [tool.model_dump(exclude_none=True) for tool in body.tools or []] if body.tool_choice != "none" else []
        try:
            return encoder.encode(messages, tools=tools or None)
        except InvalidRequest as error:
            raise invalid("messages", str(error)) from error

    def text(self, model: str, ids: list[int]) -> str:
        """Text of a prompt given as token ids (for `echo`)."""
        return self._load(model)[1].decode(ids)

    def _load(self, model: str) -> tuple[Path, Tokenizer, ChatEncoder | None]:
        version_dir = self._version_dir(model)
        found = self._loaded.get(model)
        if found is None or found[0] != version_dir:
            tokenizer = Tokenizer.from_dir(version_dir)
            encoder = ChatEncoder(tokenizer) if tokenizer.chat_templates else None
            found = self._loaded[model] = (version_dir, tokenizer, encoder)
        return found

    def _version_dir(self, model: str) -> Path:
        if self._repository is None:
            raise GatewayError(501, "chats need the model repository: start the gateway with --model-repository")
        # The name comes from a client: it must be a plain folder name of the repository.
        folder = self._repository / model
        if folder.parent != self._repository or not folder.is_dir():
            raise GatewayError(404, f"model {model!r} is not in the repository", param="model", code="model_not_found")
        versions = [path for path in folder.iterdir() if path.name.isdecimal() and (path / "manifest.json").is_file()]
        if not versions:
            raise GatewayError(404, f"model {model!r} has no version", param="model", code="model_not_found")
        return max(versions, key=lambda path: int(path.name))
