"""`trtdecode chat`: talk to a served model in the terminal, token by token."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtdecode.cli.repository import DEFAULT_GRPC_ADDRESS, DEFAULT_REPOSITORY, choose_model, newest_version_dir
from trtdecode.errors import InvalidRequest, ManifestError

if TYPE_CHECKING:
    from trtdecode.client import StreamClient, StreamStats

_HELP_LINE = "/new forgets the conversation, Ctrl-C stops an answer, Ctrl-D ends"

Prompt = str | list[int]
Encode = Callable[[Sequence[dict[str, str]]], Prompt]


def register(app: typer.Typer) -> None:
    app.command("chat", rich_help_panel="Serving")(chat)


def chat(
    message: Annotated[str | None, typer.Argument(help="Ask this one thing; without it, a conversation.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name; default the only one in the repository.")] = None,
    address: Annotated[str, typer.Option(help="Triton's gRPC end point.")] = DEFAULT_GRPC_ADDRESS,
    repository: Annotated[Path, typer.Option(help="Where the model's chat template is read.")] = DEFAULT_REPOSITORY,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Send the text as it is, without a chat template.")] = False,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 0.7,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.95,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same answer.")] = None,
) -> None:
    """Talk to a served model; answers stream as they are made.

    The chat template comes from the model's folder and the ids are made here, so that nothing you type can become a
    control token. With a server elsewhere, and no folder here, use `--raw`.
    """
    from trtdecode.client import StreamClient

    if raw and model is None:
        model = choose_model(repository, None)
    if raw:
        assert model is not None
        encode: Encode = _last_text
    else:
        model = choose_model(repository, model)
        encode = chat_encode(newest_version_dir(repository, model))
    sampling: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    if seed is not None:
        sampling["seed"] = seed
    history = [{"role": "system", "content": system}] if system else []
    with StreamClient(address, model) as client:
        conversation = Conversation(client, encode, sampling, history)
        if message is not None:
            conversation.ask(message)
        else:
            _talk(conversation, model)


class Conversation:
    """Messages so far, and the way to the server."""

    def __init__(
        self, client: StreamClient, encode: Encode, sampling: dict[str, Any], messages: list[dict[str, str]]
    ) -> None:
        self._client = client
        self._encode = encode
        self._sampling = sampling
        self._system = list(messages)
        self.messages = messages

    def forget(self) -> None:
        self.messages = list(self._system)

    def ask(self, text: str) -> StreamStats:
        """Streams the answer to stdout and a line of figures to stderr; the answer joins the conversation.

        Ctrl-C cancels the request on the server and keeps what has come.

        Raises:
            StreamError: the server refused; the question does not join the conversation.
        """
        question = {"role": "user", "content": text}
        stats, answer = stream_answer(self._client, self._encode([*self.messages, question]), self._sampling)
        self.messages = [*self.messages, question, {"role": "assistant", "content": answer}]
        return stats


def stream_answer(client: StreamClient, prompt: Prompt, sampling: dict[str, Any]) -> tuple[StreamStats, str]:
    """Prints one answer as it comes and a closing line of figures; returns both."""
    import time

    from trtdecode.client import StreamStats

    stats, texts = StreamStats(time.perf_counter()), []
    stream = client.stream(prompt, sampling)
    note = ""
    try:
        for chunk in stream:
            stats.add(chunk)
            texts.append(chunk.text)
            sys.stdout.write(printable(chunk.text))
            sys.stdout.flush()
            if chunk.finish_reason == "length":
                note = " (cut at max_tokens)"
    except KeyboardInterrupt:
        note = " (stopped)"
    finally:
        stream.close()
        sys.stdout.write("\n")
        sys.stdout.flush()
    sys.stderr.write(f"{figures(stats)}{note}\n")
    return stats, "".join(texts)


def figures(stats: StreamStats) -> str:
    """What one answer took, for people."""
    return (
        f"[{stats.num_output_tokens} tokens, first after {stats.ttft_ms:.0f} ms, "
        f"then one every {stats.itl_ms:.1f} ms; {stats.tokens_per_s:.1f} tokens/s]"
    )


def printable(text: str) -> str:
    """The text without control characters: a model must not be able to steer the terminal."""
    import unicodedata

    return "".join(
        "\ufffd" if unicodedata.category(character) == "Cc" and character not in "\n\t" else character
        for character in text
    )


def _talk(conversation: Conversation, model: str) -> None:
    import readline  # noqa: F401  (line editing and history for input())

    from trtdecode.client import StreamError

    sys.stderr.write(f"{model}: {_HELP_LINE}\n")
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            continue
        if text == "/new":
            conversation.forget()
        elif text.startswith("/"):
            sys.stderr.write(f"{text}: no such command; {_HELP_LINE}\n")
        elif text:
            try:
                conversation.ask(text)
            except (StreamError, InvalidRequest) as error:  # say so and go on: the conversation is worth keeping
                sys.stderr.write(f"{error}\n")


def chat_encode(version_dir: Path) -> Encode:
    """Messages to prompt ids by the model's own template; raises ManifestError with the way out when it has none."""
    from trtdecode.text.chat_ids import ChatEncoder
    from trtdecode.text.tokenizer import Tokenizer

    try:
        encoder = ChatEncoder(Tokenizer.from_dir(version_dir))
    except ManifestError as error:
        raise ManifestError(f"{error}; or send plain text with --raw") from error
    return encoder.encode


def _last_text(messages: Sequence[dict[str, str]]) -> Prompt:
    return messages[-1]["content"]
