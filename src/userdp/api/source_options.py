"""What a source is told beyond the fields of its records: a chat template, and the usual split."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from userdp.data.sources import InputOptions, SourceOptions
from userdp.data.splits import SplitRule
from userdp.errors import UseError

_PAPER_SPLITS = {
    "c4": SplitRule.FIRST_PART,
    "ccnews": SplitRule.FIRST_PART,
    "stackoverflow": SplitRule.GIVEN,
}
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def source_options(given: InputOptions | None, tokenizer: Path | None) -> SourceOptions:
    """The options of a source, with the chat template that lies beside the tokenizer."""
    template, tokens = _chat_template(tokenizer)
    fields = asdict(given or InputOptions())
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
