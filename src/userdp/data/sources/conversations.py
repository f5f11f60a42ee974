"""Conversations: JSON Lines or Parquet with ``messages``, or with prompt and completion.

Expected input, either of::

    {"user": "ana", "messages": [{"role": "user", "content": "Why is the sky blue?"},
                                 {"role": "assistant", "content": "Rayleigh scattering."}]}
    {"user": "ana", "prompt": "Why is the sky blue?", "completion": "Rayleigh scattering."}

The user is the person whose data it is, of the field ``--user``. A conversation is one
record, written with the tokenizer's chat template (``tokenizer_config.json`` or
``chat_template.jinja`` beside ``tokenizer.json``), else with the default of `userdp.data.chat`. The
store gets a loss mask: the loss counts the assistant's tokens only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp.data.chat import ChatTemplate, Message
from userdp.data.columns import BlockBuilder
from userdp.data.records import Drop
from userdp.data.sources.base import SourceOptions
from userdp.data.sources.parquet import build_table
from userdp.data.sources.rows import Parser, Row, owners_of
from userdp.data.sources.table import FileTable


def build(paths: list[str], options: SourceOptions) -> FileTable:
    """The source for files, folders and patterns ``paths``."""
    return replace(
        build_table(paths, options),
        kind="conversations",
        parser=conversation_parser(options),
        loss_mask=True,
        several_owners=False,
    )


def conversation_parser(options: SourceOptions) -> Parser:
    """What makes a record of a conversation."""
    template = ChatTemplate(options.chat_template, options.special_tokens)
    return _ConversationParser(options=options, template=template)


def matches(path: Path) -> bool:
    """Never: its files look like any JSON Lines."""
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class _ConversationParser:
    """A conversation per row."""

    options: SourceOptions
    template: ChatTemplate

    @property
    def fields(self) -> tuple[str, ...]:
        """User, messages, prompt and completion."""
        named = self.options
        return (named.user, named.messages, named.prompt, named.completion)

    @property
    def required(self) -> tuple[tuple[str, ...], ...]:
        """A user, and messages or a completion."""
        user, messages, _, completion = self.fields
        return ((user,), (messages, completion))

    def parse(self, row: Row, order: int, block: BlockBuilder) -> Drop | None:
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
            text = rendered.text.encode()
        except UnicodeEncodeError:
            return Drop.INVALID_UTF8
        block.add(owners[0], text, order, pieces=rendered.pieces)
        return None

    def _messages(self, row: Row) -> list[Message] | Drop:
        _, *names = self.fields
        held, prompt, completion = (row.get(name) for name in names)
        if held is None:
            both = (_string(prompt), _string(completion))
            if both[0] is None or both[1] is None:
                return Drop.NO_TEXT_FIELD if completion is None else Drop.NOT_TEXT
            return [("user", both[0]), ("assistant", both[1])]
        turns = list(_turns(held))
        if not turns:
            return Drop.EMPTY_TEXT
        if None in turns:
            return Drop.NOT_TEXT
        return [turn for turn in turns if turn is not None]


def _turns(value: Any) -> Iterator[Message | None]:
    """(role, content) of each message; None for one that has not both as text."""
    if not isinstance(value, list):
        yield None
        return
    for message in value:
        if not isinstance(message, dict):
            yield None
            continue
        role = _string(message.get("role", message.get("from")))
        content = _string(message.get("content", message.get("value")))
        yield None if role is None or content is None else (role.lower(), content)


def _string(value: Any) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None
