"""The models of a run: the one that it released, and the one that it began from.

A run of ``userdp train`` has its configuration, from which its first model is made again. A loop of
somebody's own is a program, which nobody can repeat from the run's folder. So `began_with` records,
when the run opens, where the model was loaded from and the digest of its weights: if that place
still has this digest, it is the model that the run began from. The record stands in resume.json,
which is operator-only, since it names folders of this machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from userdp.core.environment import library
from userdp.core.errors import UseError
from userdp.data.user_store import UserStore
from userdp.gradients.shards import sharded_parts
from userdp.ledger import RunFolder, RunRecord
from userdp.training.causal_models import load_model, read_model
from userdp.training.config import train_config
from userdp.training.model_origin import ModelDigests, digests_of, noted_place
from userdp.training.releasing import uncompiled


def began_with(model: nn.Module, digests: ModelDigests) -> dict[str, str | None]:
    """A record of the model that `make_private` was given. Operator-only.

    Returns:
        ``model``, the folder or the hub's name that it says it was loaded from, empty where it was
        made in memory; ``base``, the digest of its weights without adapters, None of a sharded
        model, of which no process holds them all; ``dtype`` of the first of them.
    """
    inner: Any = uncompiled(model)
    noted = noted_place(inner)
    floating = (p.dtype for p in inner.parameters() if p.dtype.is_floating_point)
    return {
        "model": str(Path(noted).resolve()) if noted and Path(noted).is_dir() else noted,
        "base": None if sharded_parts(model) else digests.base,
        "dtype": str(next(floating, torch.float32)).removeprefix("torch."),
    }


def base_of(folder: RunFolder, store: UserStore) -> nn.Module:
    """The model that a run began from, without adapters; float32.

    Raises:
        UseError: it is not known, or not there any more. No other model is taken in its place.
    """
    if folder.train.exists():
        config = train_config(folder.read_train()["learning"])
        weights = RunRecord.read(folder.path).facts.get("base_model", {}).get("weights")
        model, name = load_model(config, store), config.model
    else:
        began = folder.read_resume().began if folder.resume.exists() else {}
        weights, name = began.get("base"), began.get("model") or ""
        if not (weights and name):
            raise UseError(
                f"the run at {folder.path} does not say which model it began from: that was made "
                f"in memory or sharded, or {folder.resume.name}, its operator's, is not here",
                hint="leave the base out (--no-base); a model that from_pretrained loads is known",
            )
        model = read_model(name, store=store, dtype=getattr(torch, began["dtype"]))
    # Of new weights the ledger has no digest: they follow the seed.
    if weights not in (None, digests_of(model).whole):
        raise UseError(
            f"{name!r} does not hold the weights that the run began from: it would be compared "
            "with another model",
            hint="put these weights back, or leave the base out (--no-base)",
        )
    return model.float()


def released_models(
    folder: RunFolder, store: UserStore, *, with_base: bool, device: torch.device | None = None
) -> dict[str, nn.Module]:
    """A run's released model under ``model``, and the one that it began from under ``base``.

    On ``device``; the CPU by default.

    Raises:
        UseError: the run has released no model, a model cannot read the store's tokens, or the
            model that the run began from is not known any more.
    """
    if folder.released == folder.adapter:
        peft = library("peft", extra="lora", what="adapters")
        model = peft.PeftModel.from_pretrained(base_of(folder, store), folder.adapter)
    else:
        model = read_model(str(require_released(folder)), store=store)
    base = {"base": base_of(folder, store)} if with_base else {}
    return {of: one.to(device or "cpu") for of, one in {"model": model, **base}.items()}


def require_released(folder: RunFolder) -> Path:
    """The folder of a run's released model.

    Raises:
        UseError: the run has released none, or a module that `transformers` does not build.
    """
    if folder.released == folder.adapter:
        raise UseError(
            f"the run at {folder.path} released only adapters: there is no whole model to load",
            hint=f"load them over the base: peft.PeftModel.from_pretrained(base, {folder.adapter})",
        )
    if not folder.model.is_dir():
        raise RunRecord.read(folder.path).without_model
    if not (folder.model / "config.json").exists():
        raise UseError(
            f"the run at {folder.path} released a module that is no model of transformers",
            hint="build it yourself, and read its weights with "
            f"safetensors.torch.load_model(module, {str(folder.model / 'model.safetensors')!r})",
        )
    return folder.model
