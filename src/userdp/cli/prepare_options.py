"""The options of ``userdp prepare`` that concern some kinds of source alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.data.sources import SourceOptions
from userdp.data.splits import SplitRule
from userdp.errors import UseError

_PAPER_SPLITS = {
    "c4": SplitRule.FIRST_PART,
    "ccnews": SplitRule.FIRST_PART,
    "stackoverflow": SplitRule.GIVEN,
}
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, kw_only=True, slots=True)
class InputOptions:
    """How the input is read.

    Args:
        user_field: the field that names a record's user; a list where several own it.
        text_field: the field that holds a record's text.
        date_field: the field that holds a record's date (ISO 8601, or seconds since 1970).
        held_out_from: hold out the records of this day (ISO date, UTC) and later.
        url_field: web text: the field whose registered domain is the user.
        messages_field: conversations: the field of the list of messages.
        prompt_field: conversations: the field of the prompt.
        completion_field: conversations: the field of the answer.
        dataset_split: Hugging Face data sets: which split.
        receivers: mail: one record per receiver.
        drop_forwarded: mail: drop forwarded mail.
        drop_repeats: mail: drop mail in which a 20-gram of words repeats.
        max_users: at most this many users; for public sources (docstrings) alone.
    """

    user_field: str = "user"
    text_field: str = "text"
    date_field: str | None = None
    held_out_from: str | None = None
    url_field: str = "url"
    messages_field: str = "messages"
    prompt_field: str = "prompt"
    completion_field: str = "completion"
    dataset_split: str = "train"
    receivers: bool = False
    drop_forwarded: bool = False
    drop_repeats: bool = False
    max_users: int | None = None

    def source_options(self, tokenizer: Path | None) -> SourceOptions:
        """With the chat template that lies beside the tokenizer."""
        template, tokens = _chat_template(tokenizer)
        fields = {name: getattr(self, name) for name in self.__slots__}
        return SourceOptions(**fields, chat_template=template, special_tokens=tokens)


def default_split(kind: str) -> SplitRule:
    """The papers' split where they have one for a kind of source."""
    return _PAPER_SPLITS.get(kind, SplitRule.HASH)


def _chat_template(tokenizer: Path | None) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    if tokenizer is None:
        return None, ()
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    file = folder / "tokenizer_config.json"
    config: dict[str, Any] = {}
    if file.is_file():
        try:
            config = json.loads(file.read_bytes())
        except ValueError as error:
            raise UseError(f"{file} is not JSON: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        template = beside.read_text()
    tokens = []
    for name in _SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens.append((name, value))
    return template, tuple(tokens)
