"""The model that a run began from, by its weights and its shape: names prove nothing.

Whoever puts other weights into a folder ``models/gpt2`` has not made them OpenAI's. A page
therefore says where a name comes from, and shows the digest by which anybody can tell the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePath
from typing import Any

from userdp.reporting.markdown import visible
from userdp.reporting.numbers import number_text
from userdp.strict_json import parse

_LONGEST = 200
_OF_CONFIG = {
    "kind": ("model_type",),
    "layers": ("num_hidden_layers", "n_layer"),
    "width": ("hidden_size", "n_embd"),
    "heads": ("num_attention_heads", "n_head"),
    "vocabulary": ("vocab_size",),
}
"""Names in a config.json of `transformers`, of which GPT-2's are the older ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """What is known of the model that a run began from; None of what is not recorded.

    Args:
        origin: "bundled", "new", "folder", "hub" or "memory"; None in runs of before it was noted.
        name: on the hub, or of the folder; what a model in memory says of itself.
        weights: the digest of its weights, see `userdp.claims.weights`.
        kind: of the architecture, as `transformers` calls it.
        layers, width, heads, vocabulary: of the model, whatever options said.
        parameters: how many.
    """

    origin: str | None = None
    name: str | None = None
    weights: str | None = None
    kind: str | None = None
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    parameters: int | None = None

    @property
    def called(self) -> str:
        """Its name, and what that name is worth."""
        match self.origin:
            case "bundled":
                return "the model that comes with userdp"
            case "new":
                return "none: training began with random weights"
            case "hub":
                return f"“{self.name}” of the Hugging Face hub"
            case "folder":
                return f"a local folder called “{self.name}”"
            case "memory" if self.name:
                return f"a model in memory that calls itself “{self.name}”"
            case "memory":
                return "a model in memory"
        return "not recorded" if not self.name else f"called “{self.name}”; whence is not recorded"

    @property
    def architecture(self) -> str:
        """Its shape in words; empty if nothing of it is known."""
        words = [self.kind or ""]
        if self.layers and self.width:
            heads = f", {self.heads} heads" if self.heads else ""
            words.append(f"{self.layers} layers of width {self.width:,}{heads}")
        if self.vocabulary:
            words.append(f"{self.vocabulary:,} tokens in its vocabulary")
        if self.parameters:
            words.append(f"{_rounded(self.parameters)} parameters")
        return ", ".join(filter(None, words))


def base_model_in_words(base: BaseModel) -> str:
    """All that is known of it in one line: name, shape, digest."""
    shape = f" ({base.architecture})" if base.architecture else ""
    weights = f"; SHA-256 of its weights {base.weights}" if base.weights else ""
    return f"{base.called}{shape}{weights}"


def read_base_model(folder: Path, facts: Mapping[str, Any], model: str | None) -> BaseModel:
    """What a run's ledger notes of its base model.

    Runs of before it was noted have the shape of the model that they released, which training does
    not change, and the name that they were asked for.

    Args:
        folder: of the released model, where there is one.
        facts: of the ledger's first line.
        model: the option of ``userdp train``, if it was that.
    """
    noted = facts.get("base_model")
    if isinstance(noted, Mapping):
        return _made(noted)
    if model in ("bundled", "new"):
        return _made({"origin": model, **_of_config(folder)})
    name = None if not model else PurePath(model).name
    return _made({"name": name, **_of_config(folder)})


def _made(noted: Mapping[str, Any]) -> BaseModel:
    """Only values of the right kind: a ledger may have been written by anybody."""
    kinds = {field.name: int if "int" in str(field.type) else str for field in fields(BaseModel)}
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = noted.get(name)
        if isinstance(value, kind) and not isinstance(value, bool):
            values[name] = visible(value)[:_LONGEST] if isinstance(value, str) else value
    return BaseModel(**values)


def _of_config(folder: Path) -> dict[str, Any]:
    try:
        config = parse((folder / "config.json").read_bytes(), finite=False)
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    return {
        ours: config[theirs]
        for ours, names in _OF_CONFIG.items()
        for theirs in names
        if theirs in config
    }


def _rounded(count: int) -> str:
    """As models are spoken of: in thousands, millions, milliards.

    >>> _rounded(124_439_808), _rounded(2_590_000), _rounded(950), _rounded(8_030_261_248)
    ('124 million', '2.59 million', '950', '8.03 billion')
    """
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{number_text(count / size, 3)} {word}"
    return f"{count:,}"
