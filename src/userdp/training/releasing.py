"""How a run releases its model; every run does it here.

A model of `transformers` becomes RUN/model in the layout of Hugging Face, with the tokenizer of the
store. A model with adapters of `peft` becomes RUN/adapter, and RUN/model with the adapters merged
in. Any other module becomes the file of its weights alone, so that its lineage stays known and the
ledger can be held against it; to build the module again is its owner's part.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from userdp.claims.lineage import Lineage
from userdp.errors import UseError, in_short, warn
from userdp.gradients.shards import whole
from userdp.ledger import RunFolder
from userdp.training.distributed import current_world
from userdp.training.lora import save_adapter
from userdp.training.models import save_model


def release(
    model: nn.Module,
    folder: RunFolder,
    *,
    tokenizer: Path,
    lineage: Lineage,
    settled: str | None = None,
    own_tokenizer: Any = None,
    template: str | None = None,
) -> str:
    """Write a run's model, whole or not at all; the model itself stays as it is.

    Adapters that cannot be merged, or not without computing something else, are released alone.

    Args:
        model: not sharded.
        folder: of the run.
        tokenizer: of the store.
        lineage: what the weights descend from, the run included.
        settled: the digest of the weights that the run has settled with, if it has: no others are
            released then.
        own_tokenizer: one of `transformers`, whose files take the place of the store's.
        template: of chats, to be written beside the tokenizer.

    Returns:
        The digest of the weights in RUN/model, or of those in RUN/adapter where they are alone.

    Raises:
        UseError: the weights are not those that were settled.
        FailureError: the disk refused.
    """
    whole_model = uncompiled(model)
    adapted = is_adapted(whole_model)
    merged = _merged(whole_model) if adapted else whole_model
    weights = ""
    if merged is not None:
        weights = save_model(
            merged,
            folder.model,
            tokenizer=tokenizer,
            lineage=lineage,
            only=settled,
            own_tokenizer=own_tokenizer,
            template=template,
        )
    if adapted:
        only = settled if merged is None else None
        adapters = save_adapter(
            whole_model, folder.adapter, lineage, only=only, own_tokenizer=own_tokenizer
        )
        weights = weights or adapters
    return weights


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has adapters of `peft`, which is not imported for the question."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped; the module itself otherwise."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def unsharded(model: nn.Module) -> nn.Module:
    """A sharded model's weights in a model that is not sharded; a collective.

    Only rank 0 has the result: any other process gets ``model`` back.

    Raises:
        UseError: it is no causal language model of `transformers`, or has several adapters.
    """
    on_rank_zero = current_world().rank == 0
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        gathered = whole(tensor)
        if on_rank_zero:
            weights[name] = gathered.cpu()
    if not on_rank_zero:
        return model
    adapted: Any = model if is_adapted(model) else None
    base: Any = model if adapted is None else adapted.get_base_model()
    try:
        built: Any = transformers.AutoModelForCausalLM.from_config(base.config)
        if adapted is not None:
            (settings,) = adapted.peft_config.values()
            built = sys.modules["peft"].get_peft_model(built, copy.deepcopy(settings))
    except (AttributeError, ValueError) as error:
        raise UseError(
            "this sharded model cannot be built whole again, as it must be to be saved: it is no "
            "causal language model of transformers, or it has several adapters",
            hint="save it yourself and call finish() with userdp.claims.weights.digest_of(FOLDER)",
        ) from error
    built.load_state_dict(weights, assign=True)  # in the dtype that they are in
    (built if adapted is None else built.get_base_model()).tie_weights()
    whole_model: nn.Module = built
    return whole_model


def _merged(model: nn.Module) -> nn.Module | None:
    """A copy on the CPU with its adapters merged in: merging changes the base model in place.

    It computes what the adapters compute, as is asked on made-up tokens: the two differ by a tenth
    of what the adapters change at most. A base in half precision rounds small changes away, and is
    then merged in float32. None, with a warning, where neither does it.
    """
    why = "the model with these adapters merged in computes something else"
    for wide in (False, True):
        try:
            apart: Any = copy.deepcopy(model, _on_the_cpu(model)).eval()
            if wide:
                apart.float()
            adapted = _answers(apart)
            with apart.disable_adapter():
                before = _answers(apart)
            _untie(apart)
            merged: nn.Module = apart.merge_and_unload()
            after = _answers(merged)
            if adapted is None or before is None or after is None:
                return merged  # no language model, or one that does not run here
            allowed = max(0.1 * (adapted - before).norm(), 1e-4 * adapted.norm())
            if (after - adapted).norm() <= allowed:
                return merged
        # What a kind of adapter raises that cannot be copied or merged is documented nowhere, and
        # what was trained is paid for.
        except Exception as error:
            why = f"adapters of this kind cannot be merged ({in_short(error)})"
    warn(
        f"only the adapters are released, and no merged model: {why}. Load them over the base "
        "model with peft.PeftModel.from_pretrained(base, RUN/adapter)"
    )
    return None


@torch.no_grad()
def _answers(model: Any) -> Tensor | None:
    """A model's logits of made-up tokens; None if it is no language model, or does not run here."""
    try:
        most = model.get_input_embeddings().weight.shape[0] - 1
        answers: Tensor = model(input_ids=torch.linspace(0, most, 8).long()[None]).logits.double()
    except Exception:  # an attention kernel, say, that the CPU does not have
        return None
    return answers


def _untie(adapted: Any) -> None:
    """Give the head weights of its own, where it is tied to the embeddings and one is adapted.

    The adapters change one of the two, and merging them would change both.
    """
    base = adapted.get_base_model()
    if not isinstance(base, transformers.PreTrainedModel) or base.get_output_embeddings() is None:
        return
    first, last = base.get_input_embeddings(), base.get_output_embeddings()
    adapted_ends = [one for one in (first, last) if hasattr(one, "base_layer")]
    if adapted_ends and first.weight is last.weight:
        head = getattr(last, "base_layer", last)
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = False


def _on_the_cpu(model: nn.Module) -> dict[int, Any]:
    """What `copy.deepcopy` takes for the copies of a model's tensors: ones on the CPU.

    A device that has room for one model only need not hold two. Tensors of other types, such as
    quantized ones, know best how to copy themselves.
    """
    memo: dict[int, Any] = {}
    with torch.no_grad():
        for parameter in model.parameters():
            if type(parameter) is nn.Parameter:
                values = parameter.detach().to("cpu", copy=True)
                memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
        for buffer in model.buffers():
            if type(buffer) is Tensor:
                memo[id(buffer)] = buffer.detach().to("cpu", copy=True)
    return memo
