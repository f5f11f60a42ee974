"""Causal language models: the bundled one, a folder, the hub, or a new one from flags."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers.utils import cached_file

from userdp.core import files
from userdp.core.errors import UseError, in_short
from userdp.data.store_meta import StoreMeta
from userdp.data.user_store import UserStore
from userdp.gradients.shards import local
from userdp.training.config import Precision, TrainConfig
from userdp.training.lora import choose_trained

BUNDLED = "bundled"
NEW = "new"
_WHY_NOT = ("gated_repo", "missing_entries", "connection_errors")
_IF_THERE: Any = {f"_raise_exceptions_for_{why}": False for why in _WHY_NOT}
BASE_MODEL = Path(__file__).parents[1] / "assets" / "base-model"


def load_model(config: TrainConfig, store: UserStore) -> nn.Module:
    """The model that ``config`` names, in its precision, ready to train on ``store``'s tokens.

    Weights are read only from safetensors: a pickle file can run code.

    Raises:
        UseError: there is no such model, it has no safetensors, its weights are not whole or not
            finite, or it cannot read the store's tokens (another tokenizer, too short a context).
    """
    if config.model == NEW:
        model = new_model(config, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    else:
        model = read_model(config.model, store=store, dropout=config.dropout)
    require_finite(config.model, model)
    if config.base_precision is Precision.BFLOAT16:
        model = model.to(torch.bfloat16)
    return model.train()


def resolve(name: str) -> str:
    """The folder of the bundled model for "bundled"; else ``name``."""
    return str(BASE_MODEL) if name == BUNDLED else name


def new_shape(config: TrainConfig, *, vocab_size: int, seq_len: int) -> transformers.GPT2Config:
    """The configuration of a new model: a GPT-2-style decoder with tied embeddings."""
    shape = transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=seq_len,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    _set_dropout(shape, config.dropout)
    return shape


def new_model(config: TrainConfig, *, vocab_size: int, seq_len: int) -> nn.Module:
    """A model of `new_shape`; its initial weights follow ``config.seed``."""
    shape = new_shape(config, vocab_size=vocab_size, seq_len=seq_len)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(shape)
    return model


def models_by_depth(
    config: TrainConfig, *, vocab_size: int, seq_len: int
) -> tuple[Callable[[int], nn.Module], int]:
    """A function that builds the model of ``config`` with fewer layers, and its own depth.

    Weights are random: shapes decide what a step costs. The adapters of ``config`` are attached.

    Args:
        config: the model and its adapters.
        vocab_size: of the store, for a new model.
        seq_len: likewise.
    """
    if config.model == NEW:
        shape = new_shape(config, vocab_size=vocab_size, seq_len=seq_len)
    else:
        name = resolve(config.model)
        shape = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
    depth: int = shape.num_hidden_layers

    def build(layers: int) -> nn.Module:
        shallow = copy.deepcopy(shape)
        for name, value in shape.to_dict().items():
            if isinstance(value, list) and len(value) == depth > 1:
                setattr(shallow, name, value[:layers])  # what is listed by layer
        shallow.num_hidden_layers = layers
        # In float32, as training reads it, whatever the folder holds.
        model = transformers.AutoModelForCausalLM.from_config(shallow, dtype=torch.float32)
        return choose_trained(model, config).train()

    return build, depth


def read_model(
    name: str,
    *,
    store: UserStore | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """A causal language model from a folder or the hub, with the weights that its files hold.

    What is wrong with them, `transformers` reports on stderr, weight by weight.

    Args:
        name: "bundled", a folder, or a name on the hub.
        store: whose tokens it is to read; it is refused where it would misread them.
        dropout: set in every part of the model that has one.
        dtype: of the weights.

    Raises:
        UseError: there is no such model, or weights of it are missing or of another shape:
            `transformers` would put random numbers there.
    """
    transformers.logging.disable_progress_bar()  # one for each file would break ours
    place = resolve(name)
    try:
        shape = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
        _set_dropout(shape, dropout)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            place,
            config=shape,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with what is missing
            trust_remote_code=False,
        )
    except (OSError, ValueError) as error:
        raise UseError(
            f"cannot load a causal language model from {name!r}: {in_short(error)}",
            hint="give a folder with config.json and model.safetensors, 'bundled', or 'new'",
        ) from error
    model: nn.Module = loaded[0]
    if wrong := {*loaded[1]["missing_keys"], *(one[0] for one in loaded[1]["mismatched_keys"])}:
        raise UseError(
            f"weights in {name!r} are missing, or of another shape than its config.json says "
            f"({_some(sorted(wrong))}): random numbers would take their place",
            hint="save the model itself (with its language head), not a wrapper: of torch.compile "
            "model._orig_mod, of DataParallel model.module, of adapters model.merge_and_unload()",
        )
    if store is not None:
        require_fit(model, name, store)
    return model


def require_finite(name: str, model: nn.Module) -> None:
    """`UseError` where a weight that training would begin with is NaN or infinite."""
    if off := not_finite(model):
        raise UseError(
            f"weights of {name or 'the model'} are NaN or infinite ({_some(off)})",
            hint="take one from before training diverged; float16 makes all above 65,504 infinite",
        )


def not_finite(model: nn.Module) -> list[str]:
    """The parameters of a model that hold a NaN or an infinite number; a shard's own alone."""
    return [key for key, one in model.named_parameters() if not bool(local(one).isfinite().all())]


def context_of(model: nn.Module) -> int:
    """The most tokens that a model reads, by its configuration; 2^30 where it names no limit."""
    return int(getattr(getattr(model, "config", None), "max_position_embeddings", None) or 2**30)


def require_context(model: nn.Module, meta: StoreMeta) -> None:
    """Refuse a model that reads less than the examples have, or knows fewer tokens than the store:
    a row that fails counts as zero.
    """
    if (most := context_of(model)) < meta.seq_len:
        raise UseError(
            f"the model reads {most} tokens, the store's examples have {meta.seq_len}",
            hint="prepare the store again with a smaller --seq-len",
        )
    known: Any = model
    rows = meta.vocab_size  # of a model that names no table
    with suppress(NotImplementedError, AttributeError):
        rows = known.get_input_embeddings().weight.shape[0]
    if rows < meta.vocab_size:
        raise UseError(
            f"the model knows {rows} tokens, the store's tokenizer has {meta.vocab_size}",
            hint="prepare the store with the model's own tokenizer",
        )


def require_fit(model: nn.Module, name: str, store: UserStore) -> None:
    """Refuse a model that would misread the store's tokens."""
    require_context(model, store.meta)
    own = None if name == NEW else cached_file(resolve(name), "tokenizer.json", **_IF_THERE)
    if own is not None and _vocabulary(Path(own)) != _vocabulary(store.tokenizer_path):
        raise UseError(
            f"model {name!r} and the store have different tokenizers",
            hint=f"prepare the store with the model's own: {own}",
        )


def enable_checkpointing(model: nn.Module) -> None:
    """Keep no activations of layers: compute them again in the backward pass.

    Not reentrant: that variant runs a backward pass of its own, which no per-unit engine sees.
    """
    cast(Any, model).activation_checkpointing_enable({"use_reentrant": False})


def _set_dropout(shape: Any, dropout: float) -> None:
    for name, value in shape.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("_pdrop")):
            setattr(shape, name, dropout)


def _vocabulary(tokenizer: Path) -> object:
    return files.read_json(tokenizer, what="a tokenizer").get("model", {}).get("vocab")


def _some(keys: Sequence[str]) -> str:
    return f"{', '.join(keys[:3])}{f' and {len(keys) - 3:,} more' if len(keys) > 3 else ''}"
