"""The small files of a released model: what of them may leave, by name and by content.

When a run releases its model, `tidy` writes each of these files anew from what its library knows:
of ``config.json`` only the settings of the model's own class, of ``tokenizer.json`` what
`tokenizers` reads, of ``tokenizer_config.json`` special tokens that are in the vocabulary. So a key
that came with the base model (a note, a path, ``auto_map``, which would run code) ends here. The
ledger then binds the files, and `publish` copies just these bytes.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer

from userdp import files
from userdp.claims.bound import read_bound
from userdp.claims.copies import require_no_links
from userdp.data.tokenize import read_encoder
from userdp.errors import UseError
from userdp.extras import library

CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_WORD = re.compile(r"[^\s/\\]{1,200}")
"""A setting's value. Sentences have spaces and paths have slashes: neither is a setting."""
_PATTERN = re.compile(r"[^\s/]{1,500}")
"""``target_modules`` of an adapter may be a regular expression."""
_ON_HUB = re.compile(r"[A-Za-z0-9_.\-]{1,96}(/[A-Za-z0-9_.\-]{1,96})?")
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


def tidy(folder: Path) -> None:
    """Leave of a model's or adapter's small files only what may be handed on.

    A file of which that cannot be told (the settings of a model that `transformers` does not build
    itself, say) stays as it is: its run can be used, and `publish` refuses it, and says why.

    Args:
        folder: that nobody else writes to, before its run's ledger binds what is in it.
    """
    for name, form in _FORMS.items():
        path = folder / name
        if not path.exists():
            continue
        # The classes of models, adapters and tokenizers are other people's code, which may raise
        # anything. A model whose training is paid for is saved nevertheless.
        with contextlib.suppress(Exception):
            files.write_file(path, form(path))


def require_settled(digest: str, settled: str | None, folder: Path) -> None:
    """`UseError` where a run has settled, and with other weights than it is about to release."""
    if settled not in (None, digest):
        raise UseError(
            f"these weights are not those that the run settled with, so that nothing was "
            f"written to {folder}: the claim of the run would be of other weights",
            hint="call private.save() within the block of the run: leaving it settles with the "
            "weights as they then stand (adapters apart from their base)",
        )


def publish(source: Path, target: Path, names: Iterable[str], *, bound: Mapping[str, str]) -> None:
    """Copy what may leave of a released model's or adapter's small files.

    Guarantee: each file that is written has the digest in ``bound``, and its values are settings.

    Args:
        source: the folder of the model or of the adapter, in a run's.
        target: where to write.
        names: of the files that may leave.
        bound: SHA-256 by name, of the run's finishing line; a file that it does not name stays.

    Raises:
        UseError: a file is missing, is a link or is another one than the run released; or it holds
            what is no setting.
    """
    for name in names:
        if name not in bound:
            continue
        path = source / name
        require_no_links([path])
        data = read_bound(path, bound[name])
        if name in _FORMS:
            _FORMS[name](path)  # refuses what may not leave
        files.write_file(target / name, data)


def _config(path: Path) -> bytes:
    """A model's settings, by its own class."""
    given = files.read_json(path, what="a model's config", finite=False)
    try:
        kind = type(transformers.AutoConfig.for_model(str(given.get("model_type"))))
    except (ValueError, TypeError) as error:
        raise UseError(
            f"{path} is of a model that transformers does not know by itself "
            f"({str(given.get('model_type'))[:80]!r}): whoever gets it would have to run code that "
            "comes along, and none does",
            hint="export the weights of a model that transformers builds itself",
        ) from error
    return _json(_settings(given, kind, where=path))


def _generation(path: Path) -> bytes:
    """How a model generates."""
    given = files.read_json(path, what="how a model generates", finite=False)
    known = set(transformers.GenerationConfig().to_dict()) - _NEVER
    return _json(_kept(given, known, where=path))


def _tokenizer(path: Path) -> bytes:
    """What `tokenizers` reads."""
    return _read_tokenizer(path).to_str(pretty=True).encode()


def _tokenizer_config(path: Path) -> bytes:
    """A tokenizer's settings, and its special tokens that are in the vocabulary."""
    given = files.read_json(path, what="a tokenizer's settings")
    kept = _kept(given, _TOKENIZER_SETTINGS, where=path)
    vocabulary = _read_tokenizer(path.with_name(TOKENIZER)).get_vocab(with_added_tokens=True)
    for name in sorted(_TOKENS & given.keys()):
        token = given[name]
        text = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(text, str) and text in vocabulary:
            kept[name] = text
    return _json(kept)


def _adapter(path: Path) -> bytes:
    """An adapter's settings; its base only by a name on the hub: no folder's name leaves."""
    peft = library("peft", extra="lora", what="exporting an adapter")
    given = files.read_json(path, what="an adapter's settings", finite=False)
    kinds: Mapping[str, Any] = peft.PEFT_TYPE_TO_CONFIG_MAPPING
    kind = kinds.get(str(given.get("peft_type")))
    if kind is None:
        raise UseError(f"{path} is of a kind of adapter that peft does not know")
    known = set(kind(**_least(kind)).to_dict()) - {"auto_mapping", "revision", *_NEVER}
    base = given.get("base_model_name_or_path")
    if not isinstance(base, str) or not _ON_HUB.fullmatch(base):
        base = None
    kept = _kept(given, known - {"base_model_name_or_path"}, where=path, words=_PATTERN)
    return _json({**kept, "base_model_name_or_path": base})


_FORMS: Mapping[str, Callable[[Path], bytes]] = {
    CONFIG: _config,
    GENERATION: _generation,
    TOKENIZER: _tokenizer,
    TOKENIZER_CONFIG: _tokenizer_config,
    ADAPTER: _adapter,
}
"""What is left of a file, by its name."""


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


def _read_tokenizer(path: Path) -> Tokenizer:
    return read_encoder(path.read_bytes(), where=path)


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
