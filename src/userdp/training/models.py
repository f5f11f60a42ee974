"""Causal language models: the bundled one, a folder, the hub, or a new one from flags."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_model as save_module
from torch import nn

import userdp
from userdp import files
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError, in_short, warn
from userdp.gradients.shards import local
from userdp.ledger import RunFolder
from userdp.out_of_memory import ran_out_of_memory
from userdp.training.config import Precision, TrainConfig
from userdp.training.published import require_settled, tidy

BUNDLED = "bundled"
NEW = "new"
_LAYER = re.compile(r"\d+")
BASE_MODEL = Path(userdp.__file__).parent / "assets" / "base-model"


def load_model(config: TrainConfig, store: UserStore) -> nn.Module:
    """The model that ``config`` names, in its precision, ready to train on ``store``'s tokens.

    Weights are read only from safetensors: a pickle file can run code.

    Raises:
        UseError: there is no such model, it has no safetensors, or it cannot read the store's
            tokens (another tokenizer, too short a context).
    """
    _quiet()
    if config.model == NEW:
        model = new_model(config, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    else:
        model = read_model(resolve(config.model), dropout=config.dropout)
    require_fit(model, config.model, store)
    require_finite(config.model, model)
    if config.base_precision is Precision.BFLOAT16:
        model = model.to(torch.bfloat16)
    return model.train()


def enable_checkpointing(model: nn.Module) -> None:
    """Keep no activations of layers: compute them again in the backward pass.

    Not reentrant: that variant runs a backward pass of its own, which no per-unit engine sees.
    """
    # Under two names: transformers 5 renamed the method, and the name of its one argument.
    enable: Any = getattr(model, "activation_checkpointing_enable", None) or getattr(
        model, "gradient_checkpointing_enable", None
    )
    if enable is None or not getattr(model, "supports_gradient_checkpointing", True):
        raise UseError("this model cannot checkpoint its activations")
    enable({"use_reentrant": False})


def resolve(name: str) -> str:
    """The folder of the bundled model for "bundled"; else ``name``."""
    return str(BASE_MODEL) if name == BUNDLED else name


def new_model(config: TrainConfig, *, vocab_size: int, seq_len: int) -> nn.Module:
    """A GPT-2-style decoder with tied embeddings; its initial weights follow ``config.seed``."""
    shape = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=seq_len,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(shape)
    return model


def read_model(
    name: str,
    *,
    dropout: float = 0.0,
    settings: Path | None = None,
    dtype: torch.dtype = torch.float32,
    revision: str | None = None,
) -> nn.Module:
    """A causal language model from a folder or the hub.

    Args:
        name: of the folder, or on the hub.
        dropout: set in every part of the model that has one.
        settings: a folder whose config.json the model follows, its dropout included, in place of
            its own.
        dtype: of the weights.
        revision: on the hub.
    """
    _quiet()
    try:
        shape = transformers.AutoConfig.from_pretrained(
            name if settings is None else settings,
            revision=revision if settings is None else None,
            trust_remote_code=False,  # else whoever sits at a terminal is asked to run the folder's
        )
        if settings is None:
            _set_dropout(shape, dropout)
        model: nn.Module
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            name,
            config=shape,
            dtype=dtype,
            use_safetensors=True,
            revision=revision,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below; the library's error names none
        )
    # Of a damaged folder the libraries raise what their parts do; no list of it is documented.
    except Exception as error:
        if ran_out_of_memory(error):  # nothing is wrong with the model
            raise
        raise UseError(
            f"cannot load a causal language model from {name!r}: {in_short(error)}",
            hint="give a folder with config.json and model.safetensors, 'bundled', or 'new'",
        ) from error
    _require_whole(name, model, loaded)
    return model


def say_what_is_widened(name: str) -> None:
    """Warn where the weights of ``name`` are stored in half precision, and train in float32.

    Nobody chose the precision of the bundled model's.
    """
    stored = transformers.AutoConfig.from_pretrained(resolve(name), trust_remote_code=False).dtype
    if name != BUNDLED and stored in (torch.bfloat16, torch.float16):
        warn(
            f"the weights of {name!r} are stored as {str(stored).removeprefix('torch.')}: they are "
            "trained and released as float32, since half precision rounds most updates away"
        )


def require_finite(name: str, model: nn.Module) -> None:
    """`UseError` where a weight that training would begin with is NaN or infinite."""
    off = [key for key, one in model.named_parameters() if not bool(local(one).isfinite().all())]
    if off:
        raise UseError(
            f"weights of {name or 'the model'} are NaN or infinite ({_some(off)}): every gradient "
            "would count as zero, and epsilon would be spent on noise",
            hint="take a checkpoint from before its training diverged; a cast to float16 makes "
            "numbers above 65,504 infinite",
        )


def _require_whole(name: str, model: Any, loaded: Mapping[str, Any]) -> None:
    """`UseError` where a folder's weights are not those that its model computes with.

    `transformers` fills what is missing with random numbers and leaves out what has no place.

    Args:
        name: of the folder, or on the hub.
        model: that was loaded.
        loaded: the library's own report; weights that are tied, or that a model computes itself,
            are not in it.
    """
    other = sorted(key for key, *_ in loaded["mismatched_keys"])
    unused = sorted(key for key in loaded["unexpected_keys"] if _has_place(key, model))
    told = {
        "missing": sorted({*loaded["missing_keys"]} - {*other}),
        "of another shape": other,
        "for which the model has no place": unused or sorted(loaded["unexpected_keys"]),
    }
    if not (told["missing"] or other or unused):
        return
    faults = [f"{what} {_some(keys)}" for what, keys in told.items() if keys]
    raise UseError(
        f"the weights in {name!r} are not those of the model that its config.json describes: "
        f"{'; '.join(faults)}. Random numbers would take the place of what is missing",
        hint="save the model itself (with its language head), not a wrapper: of torch.compile "
        "model._orig_mod.save_pretrained(FOLDER), of DataParallel model.module, of adapters "
        "model.merge_and_unload()",
    )


def _has_place(key: str, model: Any) -> bool:
    """Whether a tensor that was left out is a weight of a part that the model has.

    A head of another task (``score.weight``) is of none; masks and frequencies in old files are
    buffers, which the model computes itself.
    """

    def place(name: str) -> str:
        inner = name.removeprefix(f"{model.base_model_prefix}.").rpartition(".")[0]
        return _LAYER.sub("#", inner)

    known = {place(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    parts = {one.partition(".")[0] for one in known} if key.endswith(".weight") else set()
    return place(key) in known or place(key).partition(".")[0] in parts


def _some(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:3])}{f' and {len(keys) - 3:,} more' if len(keys) > 3 else ''}"


def require_released(folder: RunFolder) -> str:
    """Where a run's released model is.

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
    return str(folder.model)


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

    What the weights descend from is written beside them and in their metadata. Of a module that is
    no model of `transformers` there is no config to write. Of the small files only that is written
    which may be handed on (`userdp.training.published`).

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
        FailureError: the disk refused.
    """
    _quiet()
    with files.whole_folder(folder) as temporary:
        try:
            if isinstance(model, transformers.PreTrainedModel):
                model.save_pretrained(temporary)
            else:
                save_module(model, str(temporary / "model.safetensors"))
        except SafetensorError as error:
            raise FailureError(
                f"cannot write the model to {folder}: {error}",
                hint="free some disk space and resume the run",
            ) from error
        digest = describe(temporary, lineage)
        require_settled(digest, only, folder)
        shutil.copyfile(tokenizer, temporary / "tokenizer.json")
        files.write_json(
            temporary / "tokenizer_config.json",
            {"tokenizer_class": "PreTrainedTokenizerFast", **_special_tokens(tokenizer)},
        )
        if own_tokenizer is not None:
            own_tokenizer.save_pretrained(temporary)
        if template is not None:
            files.write_file(temporary / "chat_template.jinja", template.encode())
        tidy(temporary)
        for path in temporary.rglob("*"):
            if path.is_file():
                path.chmod(files.SHAREABLE_FILE)
    return digest


def _special_tokens(tokenizer: Path) -> dict[str, str]:
    """The end-of-text token, if the tokenizer has the usual one."""
    added = files.read_json(tokenizer, what="a tokenizer").get("added_tokens", [])
    names = [token["content"] for token in added if token.get("special")]
    end = next((name for name in names if "endoftext" in name or name in ("</s>", "<eos>")), None)
    return {"eos_token": end} if end else {}


def _set_dropout(shape: Any, dropout: float) -> None:
    for name, value in shape.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(shape, name, dropout)


def require_fit(model: nn.Module, name: str, store: UserStore) -> None:
    """Refuse a model that would misread the store's tokens."""
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    rows = embeddings.weight.shape[0]
    if rows < store.meta.vocab_size:
        raise UseError(
            f"model {name!r} knows {rows} tokens, the store uses {store.meta.vocab_size}: they "
            "come from different tokenizers",
            hint="prepare the store with this model's tokenizer.json",
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and positions < store.meta.seq_len:
        raise UseError(
            f"model {name!r} reads {positions} tokens, the store's examples have up to "
            f"{store.meta.seq_len}",
            hint="prepare the store again with a smaller --seq-len",
        )
    own = Path(resolve(name)) / "tokenizer.json"
    if name != NEW and own.exists() and _vocabulary(own) != _vocabulary(store.tokenizer_path):
        raise UseError(
            f"model {name!r} and the store have different tokenizers: the model would read other "
            "words than the ones in the store",
            hint=f"prepare the store with the tokenizer at {own}",
        )


def _vocabulary(path: Path) -> object:
    model = files.read_json(path, what="a tokenizer").get("model")
    return model.get("vocab") if isinstance(model, dict) else None


def _quiet() -> None:
    """Weights are loaded without a progress bar or advice on stderr."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
