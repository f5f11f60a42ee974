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
beside ``tokenizer.json``), else with the default of `userdp.data.chat`. The store gets a loss mask:
the loss counts the assistant's tokens only.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from userdp.data.chat import ChatTemplate, Message
from userdp.data.records import Drop, Record
from userdp.data.sources.base import InputOptions, SourceOptions
from userdp.data.sources.parquet import build_table
from userdp.data.sources.rows import Parser, Row, owners_of
from userdp.data.sources.table import FileTable

_SHAREGPT = "conversations"
"""ShareGPT's field of the messages, each of which says whom it is ``from`` and its ``value``."""

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
"""ShareGPT's names of who speaks, and those that chat templates know."""


def build(paths: list[str], options: SourceOptions) -> FileTable:
    """The source for files, folders and patterns ``paths``."""
    return as_conversations(build_table(paths, options), options)


def as_conversations(table: FileTable, options: SourceOptions) -> FileTable:
    """A table of files, read as conversations."""
    return replace(
        table,
        kind="conversations",
        parser=conversation_parser(options),
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


def conversation_parser(options: SourceOptions) -> Parser:
    """What makes a record of a conversation."""
    template = ChatTemplate(options.chat_template, options.special_tokens)
    return _ConversationParser(options=options, template=template)


@dataclass(frozen=True, kw_only=True, slots=True)
class _ConversationParser:
    """A conversation per row."""

    options: SourceOptions
    template: ChatTemplate

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

    def parse(self, row: Row, order: int) -> Record | Drop:
        """The conversation of a row; see `Parser.parse`."""
        owners = owners_of(row.get(self.options.user))
        if isinstance(owners, Drop):
            return owners
        messages = self._messages(row)
        if isinstance(messages, Drop):
            return messages
        rendered = self.template.render(messages)
        if isinstance(rendered, Drop):
            return rendered
        try:
            return Record(owners[0], rendered.text.encode(), order, pieces=rendered.pieces)
        except UnicodeEncodeError:
            return Drop.INVALID_UTF8

    def _messages(self, row: Row) -> list[Message] | Drop:
        held = row.get(self.options.messages)
        held = row.get(_SHAREGPT) if held is None else held
        prompt, completion = row.get(self.options.prompt), row.get(self.options.completion)
        if held is None:
            both = (_string(prompt), _string(completion))
            if both[0] is None or both[1] is None:
                return Drop.NO_TEXT_FIELD if completion is None else Drop.NOT_TEXT
            return [("user", both[0]), ("assistant", both[1])]
        if not isinstance(held, list):
            return Drop.NOT_TEXT
        turns = [_turn(message) for message in held]
        wrong = next((turn for turn in turns if isinstance(turn, Drop)), None)
        return wrong or [turn for turn in turns if not isinstance(turn, Drop)] or Drop.EMPTY_TEXT


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
