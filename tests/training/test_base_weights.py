"""What a run begins from is what its base model's folder says, and what it releases is said."""

import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import userdp
from tests.plans import uls_plan
from tests.training.toy import toy_model
from userdp.ledger import StoreLedger

PLAN = uls_plan(cohort_size=8, group_size=2, steps=2, l2_clip_norm=1.0)


def rewritten(base, change):
    path = base / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


LN = "transformer.ln_f.weight"
UNFIT = {
    "of torch.compile": (lambda w: {f"_orig_mod.{k}": v for k, v in w.items()}, "missing"),
    "of DataParallel": (lambda w: {f"module.{k}": v for k, v in w.items()}, "missing"),
    "without a norm": (lambda w: {k: v for k, v in w.items() if "ln_1" not in k}, "h.0.ln_1"),
    "of another shape": (lambda w: {**w, LN: torch.ones(4)}, "transformer.ln_f"),
    "not a number": (lambda w: {**w, LN: w[LN] * torch.nan}, "NaN or infinite"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNFIT)
def test_a_base_whose_weights_do_not_fit_its_model_is_refused_before_the_charge(
    store, base, tmp_path, case
):
    change, told = UNFIT[case]
    rewritten(base, change)
    with pytest.raises(userdp.UseError, match=told) as caught:
        userdp.train(store, PLAN, out=tmp_path / "run", model=str(base))
    assert caught.value.hint is not None
    assert not (tmp_path / "run").exists()
    assert not StoreLedger(store.path).history().charges


def test_weights_stored_in_bfloat16_train_and_leave_as_float32(store, base, tmp_path):
    whole = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    whole.save_pretrained(base)
    userdp.train(store, PLAN, out=tmp_path / "run", model=str(base), learning_rate=1e-5)
    released = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert {one.dtype for one in released.values()} == {torch.float32}
    assert any(not torch.equal(one, one.bfloat16().float()) for one in released.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_loop_over_half_precision_is_warned_that_updates_are_rounded_away(store, begin, dtype):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        begin(uls_plan(steps=1), model=toy_model(store).to(dtype))
    told = [str(one.message) for one in caught if "rounded away" in str(one.message)]
    assert len(told) == (dtype is torch.bfloat16)
