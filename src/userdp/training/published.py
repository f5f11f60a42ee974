"""What of a model's folder may leave: an allow-list, by name and by content.

The ledger binds a model's weights by their digest, and nothing binds the small files beside them.
Each of these is therefore written anew from what its library knows: of ``config.json`` only the
settings of the model's own class, of ``tokenizer.json`` what `tokenizers` reads, of
``tokenizer_config.json`` special tokens that are in the vocabulary. A key that somebody added by
hand (a note, a path, ``auto_map``, which would run code) stays where it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import re
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer

from userdp import files
from userdp.claims.copies import require_no_links
from userdp.errors import UseError
from userdp.extras import library

CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
_WORD = re.compile(r"[^\s/\\]{1,200}")
"""A setting's value. Sentences have spaces and paths have slashes: neither is a setting."""
_PATTERN = re.compile(r"[^\s/]{1,500}")
"""``target_modules`` of an adapter may be a regular expression."""
_NEVER = {
    "_name_or_path", "auto_map", "custom_pipelines", "id2label", "label2id", "name_or_path",
    "task_specific_params",
}  # fmt: skip
_TOKENS = {
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
}  # fmt: skip
_TOKENIZER_SETTINGS = {
    "add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces",
    "errors", "legacy", "model_input_names", "model_max_length", "padding_side",
    "split_special_tokens", "tokenizer_class", "truncation_side", "use_default_system_prompt",
}  # fmt: skip


def publish_config(source: Path, target: Path) -> bool:
    """Write a model's ``config.json`` and ``generation_config.json`` anew.

    Returns:
        Whether there is a config: a module that is no model of `transformers` has none.

    Raises:
        UseError: a file is damaged, is a link, or holds a value that is no setting.
    """
    require_no_links([source / CONFIG, source / GENERATION])
    if not (source / CONFIG).exists():
        return False
    given = files.read_json(source / CONFIG, what="a model's config")
    try:
        kind = type(transformers.AutoConfig.for_model(str(given.get("model_type"))))
    except (ValueError, TypeError) as error:
        raise UseError(
            f"{source / CONFIG} is of a model that transformers does not know by itself "
            f"({str(given.get('model_type'))[:80]!r}): whoever gets it would have to run code that "
            "comes along, and none does",
            hint="export the weights of a model that transformers builds itself",
        ) from error
    files.write_json(target / CONFIG, _settings(given, kind, where=source / CONFIG))
    if (source / GENERATION).exists():
        given = files.read_json(source / GENERATION, what="how a model generates")
        known = set(transformers.GenerationConfig().to_dict()) - _NEVER
        kept = _kept(given, known, where=source / GENERATION)
        files.write_json(target / GENERATION, kept)
    return True


def publish_tokenizer(source: Path, target: Path, *, template: str | None) -> bool:
    """Write a tokenizer anew, and its chat template if that is the one that the ledger binds.

    Args:
        source: the model's folder.
        target: where to write.
        template: SHA-256 of the chat template in the ledger's finishing line; None: there is none.

    Returns:
        Whether there is a chat template that stays behind, since the ledger does not speak of it.

    Raises:
        UseError: a file is damaged or is a link, or the template is another one.
    """
    places = [source / name for name in (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE)]
    require_no_links(places)
    if not places[0].exists():
        return False
    try:
        tokenizer = Tokenizer.from_file(str(places[0]))
    except Exception as error:  # what `tokenizers` raises has no class of its own
        raise UseError(f"{places[0]} is no tokenizer: {error}") from error
    files.write_file(target / TOKENIZER, tokenizer.to_str(pretty=True).encode())
    if places[1].exists():
        given = files.read_json(places[1], what="a tokenizer's settings")
        kept = _kept(given, _TOKENIZER_SETTINGS, where=places[1])
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        for name in sorted(_TOKENS & given.keys()):
            token = given[name]
            text = token.get("content") if isinstance(token, Mapping) else token
            if isinstance(text, str) and text in vocabulary:
                kept[name] = text
        files.write_json(target / TOKENIZER_CONFIG, kept)
    if not places[2].exists():
        return False
    content = places[2].read_bytes()
    if template is None:
        return True
    if hashlib.sha256(content).hexdigest() != template:
        raise UseError(
            f"{places[2]} is not the chat template that the run released: the ledger's finishing "
            "line speaks of another",
            hint="put the released one back, or remove it: the model leaves without a template",
        )
    files.write_file(target / TEMPLATE, content)
    return False


def publish_adapter(source: Path, target: Path, *, base: str | None) -> None:
    """Write an adapter's settings anew.

    Args:
        source: the adapter's folder.
        target: where to write.
        base: the name of the base model on the hub, if it is from there: no folder's name leaves.

    Raises:
        UseError: `peft` is not installed or does not know this kind, or a value is no setting.
    """
    peft = library("peft", extra="lora", what="exporting an adapter")
    path = source / ADAPTER
    require_no_links([path])
    given = files.read_json(path, what="an adapter's settings")
    kinds: Mapping[str, Any] = peft.PEFT_TYPE_TO_CONFIG_MAPPING
    kind = kinds.get(str(given.get("peft_type")))
    if kind is None:
        raise UseError(f"{path} is of a kind of adapter that peft does not know")
    known = set(kind(**_least(kind)).to_dict()) - {"auto_mapping", "revision", *_NEVER}
    kept = _kept(given, known - {"base_model_name_or_path"}, where=path, words=_PATTERN)
    files.write_json(target / ADAPTER, {**kept, "base_model_name_or_path": base})


def _least(kind: Any) -> dict[str, Any]:
    """Arguments that a kind of adapter must be given: none of those that are used here."""
    empty = inspect.Parameter.empty
    needed = inspect.signature(kind).parameters.values()
    return {one.name: None for one in needed if one.default is empty}


def _settings(given: Mapping[str, Any], kind: Any, *, where: Path) -> dict[str, Any]:
    """Of a model's config what its class knows; configs within it by their own classes."""
    known = {*inspect.signature(kind).parameters, *getattr(kind, "attribute_map", {})}
    known |= {"architectures", "dtype", "model_type", "torch_dtype", "transformers_version"}
    with contextlib.suppress(TypeError, ValueError):  # one that must be given something names it
        known |= set(kind().to_dict())
    within: Mapping[str, Any] = getattr(kind, "sub_configs", {})
    kept = _kept(given, known - _NEVER - within.keys(), where=where)
    for name, inner in within.items():
        if isinstance(given.get(name), Mapping):
            if inner is transformers.AutoConfig:
                inner = type(transformers.AutoConfig.for_model(str(given[name].get("model_type"))))
            kept[name] = _settings(given[name], inner, where=where)
    return kept


def _kept(
    given: Mapping[str, Any],
    known: Container[str],
    *,
    where: Path,
    words: re.Pattern[str] = _WORD,
) -> dict[str, Any]:
    """The settings that are known; `UseError` where the value of one is none."""
    kept = {name: value for name, value in given.items() if name in known}
    for name, value in kept.items():
        if not _is_setting(value, words):
            raise UseError(
                f"{name} in {where} is no setting of a model: {json.dumps(value)[:80]}. It would "
                "be handed on with the model, and a sentence or a path may be anything",
                hint="put back what was released there",
            )
    return kept


def _is_setting(value: Any, words: re.Pattern[str]) -> bool:
    """Numbers, truth values, words, and lists and tables of such."""
    match value:
        case None | bool() | int() | float():
            return True
        case str():
            return words.fullmatch(value) is not None
        case list():
            return all(_is_setting(one, words) for one in value)
        case dict():
            return all(_is_setting(one, words) for pair in value.items() for one in pair)
    return False
