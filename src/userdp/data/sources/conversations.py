"""Conversations: tables with ``messages``, with a prompt and a completion, or as ShareGPT has them.

Expected input, any of::

    {"user": "ana", "messages": [{"role": "user", "content": "Why is the sky blue?"},
                                 {"role": "assistant", "content": "Rayleigh scattering."}]}
    {"user": "ana", "conversations": [{"from": "human", "value": "Why is the sky blue?"},
                                      {"from": "gpt", "value": "Rayleigh scattering."}]}
    {"user": "ana", "prompt": "Why is the sky blue?", "completion": "Rayleigh scattering."}

They are recognised by the names of these fields where no field is the text (`is_conversation`), so
that ``--source conversations`` need not be said.

The user is the person whose data it is, of the field ``--user``. A conversation is one record,
written with the tokenizer's chat template (``tokenizer_config.json`` or ``chat_template.jinja``
beside ``tokenizer.json``), else with `_DEFAULT_TEMPLATE`. The store gets a loss mask: the loss
counts the assistant's contents and what ends the assistant's turn.

The template is applied to place-holders in place of the messages' contents, and these are put in
afterwards. So nobody's text can open a role or end a turn: what the template wrote is markup, in
which special tokens are such; what people wrote is plain text throughout (also where it spells
``<|im_end|>``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

from jinja2 import Template, TemplateError, TemplateRuntimeError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from userdp.core.errors import UseError
from userdp.data.records import MARKUP, TARGET, Drop, Record
from userdp.data.sources.base import InputOptions, SourceOptions
from userdp.data.sources.rows import Row, owners_of
from userdp.data.sources.table import FileTable

_SHAREGPT = "conversations"
"""ShareGPT's field of the messages, each of which says whom it is ``from`` and its ``value``."""
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
"""ShareGPT's names of who speaks, and those that chat templates know."""
_ASSISTANT = ("assistant", "model", "gpt", "bot")
_DEFAULT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{{ message['content'] }}\n\n{% endfor %}"
)
"""``User: …``, a blank line, ``Assistant: …``, a blank line; used where a tokenizer has none."""
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(?=\s*[-+]?%\})")
Message = tuple[str, str]
Pieces = tuple[tuple[int, int], ...]


def as_conversations(table: FileTable, options: SourceOptions) -> FileTable:
    """A table of files, read as conversations."""
    return replace(
        table,
        kind="conversations",
        parser=ConversationParser(options=options),
        loss_mask=True,
        several_owners=False,
    )


def is_conversation(fields: Collection[str], options: InputOptions) -> bool | None:
    """Whether a row of these fields is a conversation: it has turns and no text.

    None where it has neither, so that nothing can be told of it.
    """
    if options.text in fields:
        return False
    turns = {options.messages, _SHAREGPT, options.completion}
    return True if not turns.isdisjoint(fields) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ConversationParser:
    """A conversation per row, written with ``options.chat_template``."""

    options: SourceOptions

    def __post_init__(self) -> None:
        _compiled(self.options.chat_template)

    @property
    def fields(self) -> tuple[str, ...]:
        """User, messages, prompt and completion; and ShareGPT's messages."""
        named = self.options
        usual = (named.user, named.messages, named.prompt, named.completion)
        return tuple(dict.fromkeys((*usual, _SHAREGPT)))

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """A user, and messages or a completion."""
        named = self.options
        return ((named.user,), (named.messages, _SHAREGPT, named.completion))

    def parse(self, row: Row) -> Record | Drop:
        """The conversation of a row; see `Parser.parse`."""
        owners = owners_of(row.get(self.options.user))
        if isinstance(owners, Drop):
            return owners
        messages = self._messages(row)
        written = messages if isinstance(messages, Drop) else render(messages, self.options)
        if isinstance(written, Drop):
            return written
        text, pieces = written
        try:
            return Record(owners[0], text.encode(), pieces=pieces)
        except UnicodeEncodeError:
            return Drop.INVALID_UTF8

    def _messages(self, row: Row) -> list[Message] | Drop:
        held = row.get(self.options.messages)
        held = row.get(_SHAREGPT) if held is None else held
        if held is None:
            prompt, completion = row.get(self.options.prompt), row.get(self.options.completion)
            question, answer = _string(prompt), _string(completion)
            if question is None or answer is None:
                return Drop.NO_TEXT_FIELD if completion is None else Drop.NOT_TEXT
            return [("user", question), ("assistant", answer)]
        if not isinstance(held, list):
            return Drop.NOT_TEXT
        turns: list[Message] = []
        for message in held:
            turn = _turn(message)
            if isinstance(turn, Drop):
                return turn
            turns.append(turn)
        return turns or Drop.EMPTY_TEXT


def _turn(message: Any) -> Message | Drop:
    """(role, content) of a message; content in parts is the text of all of them."""
    if not isinstance(message, dict):
        return Drop.NOT_TEXT
    role = _string(message.get("role"))
    if role is None:
        speaker = _string(message.get("from"))
        role = None if speaker is None else _ROLES.get(speaker.lower(), speaker)
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        parts = [_string(one.get("text")) for one in content if isinstance(one, dict)]
        texts = [part for part in parts if part is not None]
        content = "".join(texts) if len(texts) == len(content) else None
    if content is None:
        return Drop.NO_CONTENT
    text = _string(content)
    return Drop.NOT_TEXT if role is None or text is None else (role.lower(), text)


def _string(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def render(messages: Sequence[Message], options: SourceOptions) -> tuple[str, Pieces] | Drop:
    """The text of a conversation of (role, content), and its `Record.pieces`.

    A conversation that the template refuses (say, two turns of one role), or of which it leaves a
    message out, is a drop; one without an assistant's turn also.
    """
    if not any(role in _ASSISTANT for role, _ in messages):
        return Drop.NO_ANSWER
    held = [
        {"role": role, "content": f"{_OPEN}{number}{_CLOSE}"}
        for number, (role, _) in enumerate(messages)
    ]
    try:
        text = _compiled(options.chat_template).render(
            messages=held, add_generation_prompt=False, tools=None, **dict(options.special_tokens)
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return Drop.BAD_TEMPLATE
    first, *rest = _PLACE.split(text)  # markup, number, markup, number, ..., markup
    order = [int(number) for number in rest[::2]]  # a template may move the system's message
    if sorted(order) != list(range(len(messages))):
        return Drop.BAD_TEMPLATE
    parts = [(first, MARKUP)]
    for number, after in zip(order, rest[1::2], strict=True):
        role, content = messages[number]
        target = TARGET if role in _ASSISTANT else 0
        end = _end_of_turn(after, options) if target else 0
        parts += [(content, target), (after[:end], MARKUP | target), (after[end:], MARKUP)]
    parts = [part for part in parts if part[0]]
    ends = accumulate(len(part) for part, _ in parts)
    pieces = tuple((end, kind) for end, (_, kind) in zip(ends, parts, strict=True))
    return "".join(part for part, _ in parts), pieces


def _end_of_turn(markup: str, options: SourceOptions) -> int:
    """How much of the markup after an assistant's content ends that turn.

    Up to the end of the first special token, if it comes before anything else but blanks; else the
    blanks.
    """
    named = sorted((re.escape(one) for _, one in options.special_tokens if one), key=len)[::-1]
    usual = r"<[|/]?[\w|/-]+>"
    end = re.match(rf"\s*(?:{'|'.join([*named, usual])})?", markup)
    return end.end() if end else 0


@lru_cache(maxsize=8)
def _compiled(template: str | None) -> Template:
    """A tokenizer's chat template, or the default, to be rendered in a sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: ""
    try:
        # `transformers` marks the assistant's turns by tags of its own, which write nothing.
        plain = _GENERATION.sub(_without_meaning, template or _DEFAULT_TEMPLATE)
        return environment.from_string(plain)
    except TemplateError as error:
        raise UseError(f"the chat template cannot be read: {error}") from error


def _refuse(message: str) -> None:
    raise TemplateRuntimeError(message)


def _without_meaning(tag: re.Match[str]) -> str:
    return f"{tag[1]}{'endif' if tag[2] else 'if true'}"
