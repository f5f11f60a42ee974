"""The models of a finished run: the one that it released, and the one that it began from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.extras import library
from userdp.ledger import RunFolder
from userdp.training.config import train_config
from userdp.training.models import read_model, require_fit
from userdp.training.recipe import LoopRecipe, Recipe


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
        model = peft.PeftModel.from_pretrained(recipe_of(folder).base(store), folder.adapter)
    else:
        name = str(require_released(folder))
        model = read_model(name)
        require_fit(model, name, store)
    base = {"base": recipe_of(folder).base(store)} if with_base else {}
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
        raise UseError(
            f"the run at {folder.path} has released no model yet",
            hint="go on with it: userdp train STORE --out RUN --resume; a loop of your own calls "
            "private.save()",
        )
    if not (folder.model / "config.json").exists():
        raise UseError(
            f"the run at {folder.path} released a module that is no model of transformers: there "
            "is no config.json to build it from",
            hint="build it yourself, and read its weights with "
            f"safetensors.torch.load_model(module, {str(folder.model / 'model.safetensors')!r})",
        )
    return folder.model


def recipe_of(folder: RunFolder) -> Recipe:
    """What is known of how a run began and learned.

    Raises:
        UseError: its folder does not say it: a run of `make_private` that was handed on without
            what only its operator may know. No other model is taken in its place.
    """
    if folder.train.exists():
        weights = dict(folder.read_facts().get("base_model", {})).get("weights")
        return Recipe(train_config(folder.read_train()), weights=weights)
    if folder.loop.exists():
        return LoopRecipe(folder)
    raise UseError(
        f"the run at {folder.path} does not say which model it began from: it has neither "
        f"{folder.train.name} nor {folder.loop.name}, which only its operator holds",
        hint="leave the base model out (--no-base), or ask its operator",
    )
