"""Conversations: tables with ``messages``, with a prompt and a completion, or as ShareGPT has them.

Expected input, any of::

    {"user": "ana", "messages": [{"role": "user", "content": "Why is the sky blue?"},
                                 {"role": "assistant", "content": "Rayleigh scattering."}]}
    {"user": "ana", "conversations": [{"from": "human", "value": "Why is the sky blue?"},
                                      {"from": "gpt", "value": "Rayleigh scattering."}]}
    {"user": "ana", "prompt": "Why is the sky blue?", "completion": "Rayleigh scattering."}

Prompt and completion may be lists of messages each, as TRL has them. Conversations are recognised
by the names of these fields where no field is the text (`is_conversation`), so that ``--source
conversations`` need not be said.

The user is the person whose data it is, of the field ``--user``. A conversation is one record,
written with the tokenizer's chat template (``tokenizer_config.json`` or ``chat_template.jinja``
beside ``tokenizer.json``) as `transformers` writes it, else with `_DEFAULT_TEMPLATE`. The store
gets a loss mask: the loss counts the assistant's contents and what ends the assistant's turn; of a
prompt and a completion, those of the completion.

The template is applied to place-holders in place of the messages' contents, and these are put in
afterwards. So nobody's text can open a role or end a turn: what the template wrote is markup, in
which special tokens are such; what people wrote is plain text throughout (also where it spells
``<|im_end|>``). A template that trims contents, or cuts a part out, does so with a place-holder.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from userdp.core.errors import UseError
from userdp.core.files import read_json
from userdp.data.records import MARKUP, TARGET, Drop
from userdp.data.sources.rows_to_records import Row, Table, plain_parser
from userdp.data.sources.source import Entry, InputOptions, SourceOptions

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
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
Message = tuple[str, str]
Pieces = tuple[tuple[int, int], ...]


def template_of(tokenizer: Path | None) -> dict[str, Any]:
    """How the model of a tokenizer's file or folder writes conversations: `SourceOptions` fields.

    The file ``chat_template.jinja`` goes before the template in ``tokenizer_config.json``.
    """
    if tokenizer is None:
        return {}
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    file, beside = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    config: dict[str, Any] = {}
    if file.is_file():
        config = read_json(file, what="a tokenizer's settings", finite=False)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        template = {one["name"]: one["template"] for one in template}.get("default")
    if beside.is_file():
        template = beside.read_text(encoding="utf-8")
    named = [(name, config[name]) for name in _SPECIAL if config.get(name) is not None]
    words = [(name, one["content"] if isinstance(one, dict) else one) for name, one in named]
    return {"chat_template": template, "special_tokens": tuple(words)}


def as_conversations(table: Table, options: SourceOptions) -> Table:
    """A table, read as conversations."""
    (user, _, *dated), plain = plain_parser(options)
    turns = (options.messages, options.prompt, options.completion, _SHAREGPT)
    fields = tuple(dict.fromkeys((user, *turns, *dated)))

    def parse(row: Row) -> Entry:
        messages = _messages(row, options)
        written = messages if isinstance(messages, Drop) else render(*messages, options)
        text, pieces = (written, None) if isinstance(written, Drop) else written
        entry = plain({**row, options.text: text})
        return entry if isinstance(entry, Drop) else entry._replace(pieces=pieces)

    return replace(table, kind="conversations", fields=fields, parse=parse, loss_mask=True)


def or_conversations(
    table: Table, options: SourceOptions, first: Iterable[Collection[str]]
) -> Table:
    """The table, read as conversations where its first records are such.

    The *form* of the table decides (suffixes, names of fields), which counts as public, as the
    options of the command do. One person's record must not decide it: where the first records do
    not agree, the operator has to name the kind.

    Args:
        table: read as plain text.
        options: the names of the fields.
        first: the fields of the first records.
    """
    answers = {is_conversation(fields, options) for fields in first}
    if {True, False} <= answers:
        raise UseError(
            f"some records have the field {options.text!r}, and others are conversations: a store "
            "holds one or the other, since only conversations say what the loss counts",
            hint="prepare them apart: --source conversations drops and counts what has no turns, "
            "--source jsonl (or parquet, or csv) what has no text; filter what is in memory",
        )
    return as_conversations(table, options) if True in answers else table


def is_conversation(fields: Collection[str], options: InputOptions) -> bool | None:
    """Whether a row of these fields is a conversation: it has turns and no text.

    None where it has neither, so that it decides nothing.
    """
    if options.text in fields:
        return False
    turns = {options.messages, _SHAREGPT, options.completion}
    return True if not turns.isdisjoint(fields) else None


def _messages(row: Row, options: SourceOptions) -> tuple[list[Message], int] | Drop:
    """The messages of a row, and how many of them are its prompt."""
    prompt: Any = []
    messages = row.get(options.messages)
    messages = row.get(_SHAREGPT) if messages is None else messages
    if messages is None:
        prompt, completion = row.get(options.prompt), row.get(options.completion)
        if prompt is None or completion is None:
            return Drop.NO_TEXT_FIELD
        prompt = _listed(prompt, "user")
        messages = prompt + _listed(completion, "assistant")
    if not isinstance(messages, list):
        return Drop.NOT_TEXT
    turns: list[Message] = []
    for message in messages:
        turn = _turn(message)
        if isinstance(turn, Drop):
            return turn
        turns.append(turn)
    return (turns, len(prompt)) if turns else Drop.EMPTY_TEXT


def _listed(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _turn(message: Any) -> Message | Drop:
    """(role, content) of a message; content in parts is the text of all of them."""
    if not isinstance(message, dict):
        return Drop.NOT_TEXT
    speaker = _string(message.get("from"))
    role = _string(message.get("role")) or (speaker and _ROLES.get(speaker.lower(), speaker))
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


def render(
    messages: Sequence[Message], prompt: int, options: SourceOptions
) -> tuple[str, Pieces] | Drop:
    """The text of a conversation of (role, content), and its `Record.pieces`.

    The first ``prompt`` messages are no target, whoever's they are.
    A conversation that the template refuses (say, two turns of one role), or of which it leaves a
    message out, is a drop; one without an assistant's turn also.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    if not any(role in _ASSISTANT for role, _ in messages[prompt:]):
        return Drop.NO_ANSWER
    held = [
        {"role": role, "content": f"{_OPEN}{number}{_CLOSE}"}
        for number, (role, _) in enumerate(messages)
    ]
    template = options.chat_template or _DEFAULT_TEMPLATE
    try:
        (text,), _ = render_jinja_template(
            [held], chat_template=template, **dict(options.special_tokens)
        )
    except TemplateSyntaxError as error:
        raise UseError(f"the chat template cannot be read: {error}") from error
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError):
        return Drop.BAD_TEMPLATE
    first, *rest = _PLACE.split(text)  # markup, number, markup, number, ..., markup
    order = [int(number) for number in rest[::2]]  # a template may move the system's message
    if sorted(order) != list(range(len(messages))):
        return Drop.BAD_TEMPLATE
    parts = [(first, MARKUP)]
    for number, after in zip(order, rest[1::2], strict=True):
        role, content = messages[number]
        target = TARGET if role in _ASSISTANT and number >= prompt else 0
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
