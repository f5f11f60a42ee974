"""The models of a run: the one that it releases, and the one that it began from.

A model of `transformers` becomes RUN/model in the layout of Hugging Face, with the tokenizer of the
store. A model with adapters of `peft` becomes RUN/adapter, and RUN/model with the adapters merged
in. Any other module becomes the file of its weights alone, so that its lineage stays known and the
ledger can be held against it; to build the module again is its owner's part.

Of the small files beside the weights only settings are kept that the library's own classes know. A
note, a place on this machine or ``auto_map`` (code that would run) that came with a base model ends
here. The ledger then binds the files, and an export copies just these bytes.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_model as save_module
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe
from userdp.core import files
from userdp.core.environment import library
from userdp.core.errors import FailureError, UseError, in_short, warn
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.gradients.shards import sharded_parts
from userdp.ledger import RunFolder, RunRecord
from userdp.ledger.run_folder import DIVERGED
from userdp.training.causal_models import load_model, not_finite, read_model
from userdp.training.config import train_config
from userdp.training.distributed import World
from userdp.training.lora import is_adapted, uncompiled
from userdp.training.model_origin import ModelDigests, digests_of, noted_place

_NO_SETTINGS = {"_name_or_path", "id2label", "label2id", "task_specific_params"}
"""Entries of every configuration of `transformers` that are places, or words of another task."""

_OF_TOKENIZERS = {
    "add_bos_token", "add_eos_token", "add_prefix_space", "bos_token", "cls_token", "eos_token",
    "clean_up_tokenization_spaces", "mask_token", "model_max_length", "pad_token", "padding_side",
    "sep_token", "split_special_tokens", "tokenizer_class", "truncation_side", "unk_token",
}  # fmt: skip


def release(
    model: nn.Module, folder: RunFolder, write: Callable[..., str], *, settled: str | None = None
) -> str:
    """Write a run's model, whole or not at all; the model itself stays as it is.

    Adapters that cannot be merged, or not without computing something else, are released alone.

    Args:
        model: not sharded.
        folder: of the run.
        write: `save_model`, with what is written beside the weights.
        settled: the digest of the weights that the run has settled with, if it has: no others are
            released then.

    Returns:
        The digest of the weights in RUN/model, or of those in RUN/adapter where they are alone.

    Raises:
        UseError: the weights are not those that were settled.
        FailureError: the disk refused.
    """
    inner = uncompiled(model)
    whole_model = _merged(inner) if is_adapted(inner) else inner
    if _diverged(whole_model or inner):
        folder.log({"kind": DIVERGED})
        warn(
            f"the training of {folder.path} diverged: its weights, or what the model computes, are "
            "NaN or infinite. The run may be evaluated and reported; export refuses it. A lower "
            "learning rate, in a run of its own, may help"
        )
    try:
        if whole_model is None:
            return write(inner, folder.adapter, only=settled)
        weights = write(whole_model, folder.model, only=settled)
        if whole_model is not inner:
            write(inner, folder.adapter)
    except (OSError, SafetensorError) as error:
        raise FailureError(
            f"cannot write the model of {folder.path}: {in_short(error)}",
            hint="free some disk space, and go on: no step is lost, and none is charged again",
        ) from error
    return weights


def require_saveable(model: nn.Module) -> None:
    """Have `transformers` write the model's settings: what it refuses, it refuses before the charge
    and not after the last step, in its own words.
    """
    with tempfile.TemporaryDirectory() as place:
        for name in ("config", "generation_config"):
            settings: Any = getattr(uncompiled(model), name, None)
            if hasattr(settings, "save_pretrained"):
                settings.save_pretrained(place)


def save_model(
    model: nn.Module,
    folder: Path,
    *,
    tokenizer: Path,
    lineage: Lineage,
    only: str | None = None,
    own_tokenizer: Any = None,
    template: str | None = None,
) -> str:
    """Write config, safetensors and tokenizer as a Hugging Face folder, whole or not at all.

    What the weights descend from is written beside them. Of a module that is
    no model of `transformers` there is no config to write; of one of `peft` the adapters are
    written.

    Args:
        model: with the weights to write.
        folder: to be made, or replaced.
        tokenizer: the file to write beside them.
        lineage: what the weights descend from.
        only: the digest that the weights must have, if no others may be written.
        own_tokenizer: one of `transformers`, whose files take the place of ``tokenizer``'s.
        template: of chats, to be written beside the tokenizer.

    Returns:
        The digest of the weights (`userdp.claims.weights`).

    Raises:
        UseError: the weights are not those of ``only``.
    """
    with files.whole_folder(folder) as temporary:
        if isinstance(model, transformers.PreTrainedModel):
            model.save_pretrained(temporary)
            _rewrite(temporary / "config.json", lambda given: _settings(given, model.config))
            known = transformers.GenerationConfig().to_dict()
            _rewrite(temporary / "generation_config.json", lambda given: _only(given, known))
        elif is_adapted(model):
            adapted: Any = model
            adapted.save_pretrained(temporary, selected_adapters=adapted.active_adapters)
            for file in temporary.glob(f"{adapted.active_adapters[0]}/*"):  # has a name of its own
                file.rename(temporary / file.name)
            (temporary / "README.md").unlink(missing_ok=True)
            _rewrite(temporary / "adapter_config.json", _without_places)
        else:
            save_module(model, str(temporary / "model.safetensors"))
        digest = describe(temporary, lineage)
        if only not in (None, digest):
            raise UseError(
                f"these weights are not those that the run settled with: {folder} is as it was",
                hint="call private.save() within the block of the run: leaving it settles with the "
                "weights as they then stand (adapters apart from their base)",
            )
        _write_tokenizer(temporary, tokenizer, own_tokenizer)
        if template is not None:
            files.write_file(temporary / "chat_template.jinja", template.encode())
        for path in temporary.rglob("*"):
            if path.is_file():
                path.chmod(files.SHAREABLE_FILE)
    return digest


def unsharded(model: nn.Module) -> nn.Module:
    """A sharded model's weights in a model that is not sharded; a collective.

    Only rank 0 has the result: any other process gets ``model`` back.

    Raises:
        UseError: it is no causal language model of `transformers`.
    """
    on_the_host = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=on_the_host)
    if World().rank:
        return model
    adapted: Any = model if is_adapted(model) else None
    base: Any = model if adapted is None else adapted.get_base_model()
    if not isinstance(base, transformers.PreTrainedModel):
        raise UseError(
            "this sharded model cannot be built whole again: it is no causal one of transformers",
            hint="save it yourself, and call private.finish() (docs/loop.md, Saving)",
        )
    built: Any = transformers.AutoModelForCausalLM.from_config(base.config)
    plain = built
    if adapted is not None:
        ((name, settings),) = adapted.peft_config.items()
        built = sys.modules["peft"].get_peft_model(built, copy.deepcopy(settings), name)
    built.load_state_dict(weights, assign=True)  # in the dtype that they are in
    plain.tie_weights()
    return cast(nn.Module, built)


def _merged(model: nn.Module) -> nn.Module | None:
    """A copy on the CPU, in float32, with its adapters merged in.

    In float32, since half precision would round small changes away. None, with a warning, where
    the copy does not compute what base and adapters compute, as is asked on made-up tokens (where
    embeddings and head are tied and only one is adapted, say), or where it cannot be asked.
    """
    why = "the model with these adapters merged in computes something else"
    try:
        apart: Any = _on_the_cpu(model).float().eval()
        for one in apart.modules():  # what TRL puts in its place computes with the original
            vars(one).pop("forward", None)
        right = _answer(apart)
        merged: Any = apart.merge_and_unload()
        alike = (_answer(merged) - right).norm() <= _MERGED_LIKE * right.norm()
        if alike or not right.isfinite().all():  # a diverged model compares with nothing
            return cast(nn.Module, merged)
    # Kinds of adapters that cannot be copied or merged raise errors that are documented nowhere.
    # The training is paid for, so that the adapters are released in any case.
    except Exception as error:
        why = f"adapters of this kind cannot be merged ({in_short(error)})"
    warn(
        f"only the adapters are released, and no merged model: {why}. Load them over the base "
        "model with peft.PeftModel.from_pretrained(base, RUN/adapter)"
    )
    return None


_MERGED_LIKE = 1e-4
"""Largest difference, in parts of the norm of the logits; float32 rounds by some 1e-6."""


@torch.no_grad()
def _answer(model: Any) -> Tensor:
    """The logits of a language model for made-up tokens."""
    table = model.get_input_embeddings().weight
    tokens = torch.linspace(0, table.shape[0] - 1, 8).long()[None].to(table.device)
    return cast(Tensor, model(input_ids=tokens).logits)


def _diverged(model: nn.Module) -> bool:
    """Whether a model's weights, or its logits for made-up tokens, are not finite.

    Weights of 1e30 are finite, but nothing computed from them is. Nobody's data is read.
    """
    if not_finite(model):
        return True
    was_training = model.training
    try:
        return not bool(_answer(model.eval()).isfinite().all())
    except Exception:  # a module that is no language model: its weights alone can be asked
        return False
    finally:
        model.train(was_training)


def _on_the_cpu(model: nn.Module) -> nn.Module:
    """A copy of a model on the CPU: a device that has room for one of it need not hold two."""
    memo: dict[int, Any] = {}
    for one in (*model.parameters(), *model.buffers()):
        # Tensors of other types, such as quantized ones, know best how to copy themselves.
        if type(one) in (nn.Parameter, Tensor):
            values = one.detach().to("cpu", copy=True)
            memo[id(one)] = nn.Parameter(values) if type(one) is nn.Parameter else values
    return copy.deepcopy(model, memo)


def _write_tokenizer(folder: Path, tokenizer: Path, own: Any) -> None:
    """A tokenizer's files: those of the store's file, or of ``own``."""
    shutil.copyfile(tokenizer, folder / "tokenizer.json")
    known = StoreTokenizer.load(tokenizer)
    end = known.end_of_text_id
    named = {} if end is None else {"eos_token": known.encoder.id_to_token(end)}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    files.write_json(folder / "tokenizer_config.json", settings)
    if own is not None:
        own.save_pretrained(folder)
    _rewrite(folder / "tokenizer_config.json", lambda given: _only(given, _OF_TOKENIZERS))


def _rewrite(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if path.exists():
        given = files.read_json(path, what="settings", finite=False)
        files.write_file(path, json.dumps(change(given), indent=2).encode())


def _without_places(given: dict[str, Any]) -> dict[str, Any]:
    """Settings without places on this machine and without code: models by a hub's name only."""
    kept = dict[str, Any]()
    for name, value in given.items():
        place = Path(value) if isinstance(value, str) else Path()
        here = name.endswith("_name_or_path") and (place.is_absolute() or place.exists())
        code = name.startswith(("auto_map", "_name_or_path"))
        if not (here or code or name.endswith("_file")):  # such as a cache of CorDA
            kept[name] = _without_places(value) if isinstance(value, dict) else value
    return kept


def _only(given: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in known}


def _settings(given: dict[str, Any], config: transformers.PretrainedConfig) -> dict[str, Any]:
    """The entries of a config that its class knows; configs within it likewise.

    No claim covers anything else that stands there, such as people's names as labels.
    """
    known = {*inspect.signature(type(config)).parameters, *config.attribute_map}
    known |= {"architectures", "dtype", "model_type", "quantization_config", "transformers_version"}
    with contextlib.suppress(TypeError, ValueError):  # one that must be given something names it
        known |= type(config)().to_dict().keys()
    kept = _only(given, known - _NO_SETTINGS)
    for name, inner in vars(config).items():
        if name in kept and isinstance(inner, transformers.PretrainedConfig):
            kept[name] = _settings(kept[name], inner)
    return kept


# The models of a finished run, read again.


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
        weights = RunRecord.read(folder.path).begin.facts.get("base_model", {}).get("weights")
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
            f"{name!r} does not hold the weights that the run began from: no base to compare with",
            hint="put them back, or leave the base out (--no-base); adapters alone need their base",
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
