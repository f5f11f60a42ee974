"""What a source is told beyond the fields of its records: a chat template, and the usual split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from userdp.data.sources import KINDS, InputOptions, SourceOptions
from userdp.data.splits import SplitRule
from userdp.errors import UseError, kind_of
from userdp.files import read_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def source_options(given: InputOptions | None, tokenizer: Path | None) -> SourceOptions:
    """The options of a source, with the chat template that lies beside the tokenizer."""
    template, tokens = _chat_template(tokenizer)
    fields = asdict(given or InputOptions())
    return SourceOptions(**fields, chat_template=template, special_tokens=tokens)


def default_split(kind: str) -> SplitRule:
    """The papers' split where they have one for a kind of source."""
    return KINDS[kind].split if kind in KINDS else SplitRule.HASH


def _chat_template(tokenizer: Path | None) -> tuple[str | None, tuple[tuple[str, str], ...]]:
    if tokenizer is None:
        return None, ()
    folder = tokenizer if tokenizer.is_dir() else tokenizer.parent
    file = folder / "tokenizer_config.json"
    config: dict[str, Any] = {}
    if file.is_file():
        config = read_json(file, what="a tokenizer's settings", finite=False)
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name
        named = [one for one in template if isinstance(one, dict) and one.get("name") == "default"]
        template = named[-1].get("template") if named else None
    if template is not None and not isinstance(template, str):
        raise UseError(f"the chat template in {file} is no text")
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        try:
            template = beside.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UseError(f"cannot read a chat template: {beside}: {kind_of(error)}") from error
    tokens = []
    for name in _SPECIAL:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens.append((name, value))
    return template, tuple(tokens)
