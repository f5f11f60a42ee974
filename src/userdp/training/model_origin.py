"""The origin of a model's weights: their digests, their lineage, and the facts that a run records.

What weights descend from decides the claim of every run that begins with them (invariant 13). The
store's ledger knows released weights by their digest, and a model's folder says what it descends
from; `userdp.claims.weights.ancestry` asks both. What neither knows is a condition of the claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import Tensor, nn

from userdp.claims.lineage import Condition, ConditionKind, Lineage, lineage_from
from userdp.claims.weights import Subject, ancestry, weights_digest
from userdp.core.codec import parse
from userdp.core.errors import UseError
from userdp.data.selection import lineage_of_scores as score_lineage
from userdp.data.user_store import UserStore
from userdp.gradients.shards import is_sharded, local
from userdp.ledger import StoreLedger
from userdp.plans import MadeFor
from userdp.training.causal_models import BUNDLED, NEW, resolve
from userdp.training.config import TrainConfig
from userdp.training.lora import (
    are_fresh,
    data_of_adapters,
    is_adapted,
    is_of_base,
    uncompiled,
)

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelDigests:
    """Digests of a model's weights at one moment; `userdp.claims.weights` says of what exactly.

    A folder to which the model is saved in its own dtype has the digest ``whole``, and a folder of
    adapters of one kind the digest ``adapters``. Of a sharded model all digests are of this
    process's part.

    Args:
        tensors: dtype, shape and digest of the bytes of each parameter and buffer, by its name.
        of_adapters: the names of those that belong to adapters of `peft`.
    """

    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
    of_adapters: frozenset[str]

    @property
    def whole(self) -> str:
        """The digest of all weights."""
        return self.without(())

    @property
    def base(self) -> str:
        """The digest of the weights without adapters."""
        return self.without(self.of_adapters)

    @property
    def adapters(self) -> str:
        """The digest of the adapters; of none that of no tensors, which no run has released."""
        return self.without(self.tensors.keys() - self.of_adapters)

    def without(self, names: Container[str]) -> str:
        """The digest of the weights that have other names than these."""
        return weights_digest(one for name, one in self.tensors.items() if name not in names)


def digests_of(model: nn.Module) -> ModelDigests:
    """The digests of a model as it stands; every tensor is hashed once."""
    inner = uncompiled(model)
    tensors = {
        name: _fingerprint(tensor)
        for name, tensor in inner.state_dict().items()
        if isinstance(tensor, Tensor) and tensor.dtype in _NAMES
    }
    of_adapters = (n for n in tensors if is_adapted(inner) and not is_of_base(inner, n))
    return ModelDigests(tensors, frozenset(of_adapters))


def lineage_of_model(
    store: UserStore,
    model: nn.Module | None = None,
    *,
    name: str | None = None,
    digests: ModelDigests | None = None,
) -> Lineage:
    """What a model's weights descend from, before they are trained on ``store``.

    The base and the adapters of a `peft` model are looked up separately: new adapters descend from
    nobody.

    Args:
        store: whose people the lineage is for; its ledger knows what was released of them.
        model: at the weights that training begins with; None before they are loaded.
        name: the place from which the weights were just loaded, or will be; new weights descend
            from nobody. By default the place that `transformers` noted in the model, which counts
            only if it still holds these weights.
        digests: of the model, where they are known already.
    """
    if name == NEW:
        return Lineage()
    if model is None:
        of = Subject(name=resolve(name or ""), loaded=True)
    else:
        of = _subject_of(model, digests or digests_of(model), name)
    return ancestry(of, StoreLedger(store.path))


def _subject_of(model: nn.Module, digests: ModelDigests, loaded_from: str | None) -> Subject:
    """A model in memory by its digests, for `userdp.claims.weights.ancestry`."""
    inner: Any = uncompiled(model)
    loaded = loaded_from is not None
    name = noted_place(inner) if loaded_from is None else resolve(loaded_from)
    # No process holds all weights of a sharded model, so that it has no digest here.
    if any(map(is_sharded, model.parameters())):
        return Subject(name=name, loaded=loaded)
    whole = Subject(name=name, weights=digests.whole, loaded=loaded)
    if not is_adapted(inner):
        return whole
    from_data = data_of_adapters(inner)
    doubt = f"initialised from data: {from_data}" if from_data else "no ledger knows them"
    return replace(
        whole,
        base=Subject(name=noted_place(inner.get_base_model()), weights=digests.base),
        adapters=digests.adapters,
        doubt=doubt if from_data or not are_fresh(inner) else "",
    )


def lineage_of_text(store: UserStore) -> Lineage:
    """The lineage of a store's text: of the models that wrote some of it, or selected from it."""
    lineage = Lineage()
    for facts in store.meta.sources:
        for plain in facts.get("text_lineage", ()):
            lineage += lineage_from(plain, what=f"the origin of text in {store.path}")
        told = [
            (ConditionKind.FILTERED, str(one["private_data"]))
            for one in facts.get("filtered_against_private", ())
        ]
        if facts.get("text_of_unknown_model"):
            told.append((ConditionKind.TEXT, "generated text whose provenance is lost"))
        conditions = {Condition(kind=kind, told=what) for kind, what in told}
        lineage += Lineage(conditions=tuple(sorted(conditions)))
    return lineage


def lineage_of_scores(path: Path) -> Lineage:
    """The lineage of the model that scored the examples; unknown if the file does not tell it."""
    if text := score_lineage(path):
        return lineage_from(parse(text), what=f"the lineage in {path}")
    return Lineage(conditions=(Condition(kind=ConditionKind.BASE, told="the model of its scores"),))


def ledger_id(store: UserStore) -> str:
    """The random id of a store's ledger, which stays the same when records are appended."""
    return StoreLedger(store.path).append().id


def made_with(config: TrainConfig, *, weights: str) -> MadeFor:
    """The base weights and adapters for which norms are measured and plans are made.

    Args:
        config: of the model and its adapters; a new model's weights follow its seed, which does not
            matter.
        weights: the digest of the model of ``config``, without adapters.
    """
    adapters = (
        f"rank {config.lora_rank}, alpha {config.lora_alpha}, of {list(config.lora_targets)}"
        if config.lora_rank is not None
        else None
    )
    return MadeFor(weights=None if config.model == NEW else weights, adapters=adapters)


def require_made_for(wanted: MadeFor, store: UserStore, made: MadeFor) -> None:
    """Refuse a plan whose norms were measured on another store, model or adapters.

    Raises:
        UseError: says which of them differs.
    """
    other = "adapters" if wanted.adapters != made.adapters else ""
    if None not in (wanted.weights, made.weights) and wanted.weights != made.weights:
        other = "base model"
    if wanted.store not in (None, ledger_id(store)):
        other = "store"
    if other:
        raise UseError(
            f"the plan was made from gradient norms of another {other}: it says nothing of this",
            hint="measure again: `userdp plan --model`",
        )


_SHAPE = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
"""Our names, and those by which every configuration of `transformers` can be asked."""


def base_facts(
    model: nn.Module, *, weights: str | None, loaded_from: str | None = None
) -> dict[str, Any]:
    """Facts of the base model for the ledger's first line: its weights and shape, not only a name.

    A folder ``models/gpt2`` may hold anything. A reviewer can check the digest of the weights, and
    the architecture that was built. Both are public constants: no record has a part in them.

    Args:
        model: at the weights that training begins with, before adapters are added if userdp adds
            them.
        weights: their digest, if it is known; left out of new weights, which follow a seed.
        loaded_from: where userdp itself just read them; None of a model that a caller brought,
            which says of itself where it is from.

    Returns:
        ``origin`` ("bundled", "new", "folder", "hub" or "memory"); ``name``, of a folder without
        its place; ``weights``; ``kind`` of the architecture, ``layers``, ``width``, ``heads`` and
        ``vocabulary`` as far as its configuration tells; ``parameters``.
    """
    name, config = loaded_from or noted_place(model), getattr(model, "config", None)
    origin = "memory" if loaded_from is None else "folder" if Path(name).is_dir() else "hub"
    if loaded_from in (BUNDLED, NEW):
        origin, name = name, ""
    facts: dict[str, Any] = {
        "origin": origin,
        "name": name if origin == "hub" else PurePath(name).name,
        "weights": None if origin == NEW else weights,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "kind": getattr(config, "model_type", None) or type(model).__name__,
        **{ours: getattr(config, theirs, None) for ours, theirs in _SHAPE.items()},
    }
    return {key: value for key, value in facts.items() if isinstance(value, str | int) and value}


def noted_place(model: nn.Module) -> str:
    """Where `transformers` says that it loaded a model from; empty of any other."""
    return str(getattr(model, "name_or_path", "") or "")


def _fingerprint(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Its dtype, its shape and the digest of its bytes."""
    values = local(tensor.detach()).cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return _NAMES[tensor.dtype], tuple(tensor.shape), hashlib.sha256(values.data).digest()
