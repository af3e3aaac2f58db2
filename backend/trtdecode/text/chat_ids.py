"""Messages to prompt ids such that no text from users can become a control token.

A control token is an added token that tokenizer.json marks `special`. The template writes control tokens as text,
and users may write the same text into their messages. To tell the two apart:

1. In user strings, control text is broken: its first character is replaced by a stand-in (a private-use character
   that occurs in no message). So template logic that looks at the content still works.
2. A template could still join pieces of user strings to control text. So, where a user string holds any character
   that control text begins with, a second rendering replaces every such character. No control text can come from
   users there. If the two renderings show the same control tokens, the first is used, else the second.
3. Control text in the rendering is now the template's own. It is replaced by names that nobody can guess, the
   stand-ins by their characters, and the whole is encoded by a tokenizer whose control tokens have those names.
   Splitting, normalising and spacing are thus exactly those of encoding the rendered text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trtdecode.errors import InvalidRequest, ManifestError
from trtdecode.text.chat_template import ChatTemplate, checked_messages
from trtdecode.text.tokenizer import Tokenizer, checked_text

Replace = Callable[[str], str]

_PRIVATE_USE = range(0xF0000, 0xFFFFE)


class ChatEncoder:
    """Renders and encodes chats for one model. Thread-safe.

    Raises:
        ManifestError: the model has no chat template, or one that does not compile.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        sources = tokenizer.chat_templates
        if "default" not in sources:
            raise ManifestError("tokenizer_config.json: no chat_template; use completions, or import a chat model")
        variables = tokenizer.special_token_texts
        self._templates = {name: ChatTemplate(source, variables) for name, source in sources.items()}
        self._renamed = _RenamedTokenizer(tokenizer)

    def render(
        self,
        messages: Any,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, for people; the arguments are those of `ChatTemplate.render`."""
        template = self._template_for(tools)
        return template.render(
            checked_messages(messages), tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
        )

    def encode(
        self,
        messages: Any,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt ids. BOS is there if, and only if, the template writes it.

        Raises:
            InvalidRequest: messages of a wrong form, or refused by the template.
        """
        checked = checked_messages(messages)
        shield = _Shield(self._renamed.control_texts, [checked, tools, extra])

        def rendered(replace: Replace) -> str:
            return self._template_for(tools).render(
                [_map_message(message, replace) for message in checked],
                tools=_map_strings(tools, replace),
                add_generation_prompt=add_generation_prompt,
                extra=_map_strings(extra, replace),
            )

        text = rendered(shield.break_control_text)
        if shield.is_needed:
            strict = rendered(shield.break_every_start)
            if self._renamed.control_tokens_in(text) != self._renamed.control_tokens_in(strict):
                text = strict
        return self._renamed.encode(text, shield)

    def _template_for(self, tools: Sequence[Mapping[str, Any]] | None) -> ChatTemplate:
        """Some models name a template of their own for prompts with tools."""
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        return self._templates[name]


class _Shield:
    """Replaces the first characters of control text by stand-ins that occur in none of the given strings."""

    def __init__(self, control_texts: Sequence[str], values: Any) -> None:
        strings = list(_strings_in(values))
        starts = sorted({text[0] for text in control_texts})
        self.is_needed = any(start in string for start in starts for string in strings)
        if not self.is_needed:
            starts = []
        used = {character for string in strings for character in string if ord(character) >= _PRIVATE_USE.start}
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        self._stand_ins = str.maketrans(dict(zip(starts, free, strict=False)))
        self._originals = str.maketrans({stand_in: chr(code) for code, stand_in in self._stand_ins.items()})
        self._pattern = _pattern_of(control_texts)

    def break_every_start(self, text: str) -> str:
        return text.translate(self._stand_ins)

    def break_control_text(self, text: str) -> str:
        """Repeats, because breaking one token may leave another that overlapped it."""
        while self.is_needed and self._pattern.search(text):
            text = self._pattern.sub(lambda match: match[0][0].translate(self._stand_ins) + match[0][1:], text)
        return text

    def restore(self, text: str) -> str:
        return text.translate(self._originals)


class _RenamedTokenizer:
    """The model's tokenizer with control tokens under secret names; ids come out as the model's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import tokenizers

        data = json.loads(tokenizer.json_text)
        nonce = secrets.token_hex(16)
        self._names: dict[str, str] = {}  # control text -> secret name
        contents: dict[str, int] = {}  # added token's new text -> the model's id
        for token in data["added_tokens"]:
            if token["special"]:
                self._names[token["content"]] = token["content"] = f"<|{nonce}.{token['id']}|>"
            contents[token["content"]] = token["id"]
        _rename_in_model(data["model"], self._names)
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._ids = {self._tokenizer.token_to_id(content): id_ for content, id_ in contents.items()}
        self._control_ids = tokenizer.special_ids
        self._pattern = _pattern_of(self.control_texts)

    @property
    def control_texts(self) -> list[str]:
        return list(self._names)

    def control_tokens_in(self, text: str) -> list[str]:
        return self._pattern.findall(text)

    def encode(self, rendered: str, shield: _Shield) -> list[int]:
        named = self._pattern.sub(lambda match: self._names[match[0]], rendered)
        text = checked_text(shield.restore(named), "messages")
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        ids = [self._ids.get(id_, id_) for id_ in encoding.ids]
        for id_, given in zip(ids, encoding.ids, strict=True):
            if id_ in self._control_ids and given not in self._ids:
                raise InvalidRequest("messages", self._tokenizer.id_to_token(given), "must not spell a control token")
        return ids


def _rename_in_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Vocabularies hold control tokens too, where text could reach them: unigram models look pieces up, and BPE
    merges made from a vocabulary may build them. Ids stay."""
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): id_ for token, id_ in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        pairs = [merge if isinstance(merge, list) else merge.split(" ", 1) for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]


def _pattern_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Leftmost, then longest, as `tokenizers` finds added tokens; matches nothing where there are none."""
    return re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)")


def _map_message(message: Mapping[str, Any], replace: Replace) -> dict[str, Any]:
    """The role was checked against a fixed list and is part of control text in some templates: it stays."""
    return {**_map_strings(message, replace), "role": message["role"]}


def _map_strings(value: Any, replace: Replace) -> Any:
    """A copy with every string replaced, keys of objects too: a tool's schema is the caller's text."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, replace): _map_strings(item, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, replace) for item in value]
    return value


def _strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings_in(key)
            yield from _strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings_in(item)
