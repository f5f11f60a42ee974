"""A model whose users cannot share a pass says so, before anything is charged."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.plans import uls_plan
from tests.training.toy import sgd
from userdp.gradients import causal_lm_loss
from userdp.ledger import StoreLedger
from userdp.training.config import PrivateOptions
from userdp.training.private import make_private
from userdp.training.questions import require_fit_for_steps, rule_of


def ask(model, *, engine="auto", rows=1) -> None:
    plan = uls_plan(group_size=rows)
    asked = SimpleNamespace(
        model=model,
        loss=causal_lm_loss,
        options=PrivateOptions(engine=engine),
        store=SimpleNamespace(meta=SimpleNamespace(seq_len=16, loss_mask=False)),
    )
    how = {"l2_clip_norm": plan.clip.l2_norm, "micro_batch": 32, "rule": rule_of(plan)}
    require_fit_for_steps(asked, plan, how)


def experts(vocabulary: int = 50, *, layers: int = 2) -> torch.nn.Module:
    torch.manual_seed(0)
    shape = MixtralConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        num_local_experts=2,
        num_experts_per_tok=1,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model: torch.nn.Module = AutoModelForCausalLM.from_config(shape)
    return model


def test_it_is_said_once_before_anything_is_charged(store, tmp_path):
    model = experts(store.meta.vocab_size)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="users cannot share a pass")
        with pytest.raises(UserWarning, match="users cannot share a pass") as said:
            make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run", micro_batch=64)
    assert StoreLedger(store.path).charges() == []
    assert not (tmp_path / "run").exists()
    assert "2 layers model.layers.*.mlp.gate (MixtralTopKRouter)" in said.value.message
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with make_private(
            model, sgd(model), store, uls_plan(), out=tmp_path / "run", micro_batch=64
        ) as private:
            next(iter(private))
    assert sum("users cannot share" in str(one.message) for one in caught) == 1


def noting_rows(model, path):
    """Notes the rows of each pass in a file: what a hook holds may not change from pass to pass."""

    def note(module, args, kwargs):
        with path.open("a") as file:
            file.write(f"{kwargs['input_ids'].tolist()}\n")

    model.register_forward_pre_hook(note, with_kwargs=True)
    return model


def test_nobodys_data_is_asked(tmp_path):
    """The model sees made-up rows only: the same ones, whatever the store holds."""
    seen = []
    for name in ("first", "again"):
        model = noting_rows(experts(layers=1), tmp_path / name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask(model)
        seen.append(set((tmp_path / name).read_text().splitlines()))
    assert seen[0]
    assert seen[0] == seen[1]
