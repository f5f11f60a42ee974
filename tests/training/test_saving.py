"""`private.save()`: what a loop of one's own releases, and what the ledger says of it."""

import copy
import json
from functools import partial

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, load_model, save_file

import userdp
from tests.gradients.campaign.models import HeadOnSelected
from tests.ledgers import forget
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import private_run, run_all, sgd, toy_model, trained, weights
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.subject import digest_of
from userdp.claims.verify import verify
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.training.origin import digest_of_weights
from userdp.training.private import make_private
from userdp.training.releasing import release, save_model
from userdp.training.run_models import require_released


def adapted_model(store):
    settings = peft.LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=True)
    return peft.get_peft_model(toy_model(store), settings)


def any_module(store):
    model = HeadOnSelected()
    model.embedding = torch.nn.Embedding(store.meta.vocab_size, 8)
    model.head = torch.nn.Linear(8, store.meta.vocab_size)
    return model


def on_selected(model, input_ids, lengths):
    from tests.gradients.campaign import losses

    return losses.on_selected(model, input_ids, lengths)


def finishing_digests(run):
    (line,) = [
        line
        for line in map(json.loads, (run / "ledger.jsonl").read_text().splitlines())
        if line["kind"] == "finish"
    ]
    return line["digests"]


def test_a_saved_model_is_the_settled_one_and_its_folder_is_whole(store, tmp_path):
    model, run = toy_model(store), tmp_path / "run"
    trained(model, store, run)
    read = transformers.AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    assert torch.equal(weights(read), weights(model))
    assert tokenizer("w3 w1")["input_ids"] == [5, 3]
    assert finishing_digests(run)["weights"] == digest_of(run / "model")
    (released,) = StoreLedger(store.path).history().released
    assert released.weights == digest_of(run / "model")
    assert verify(run).problems == ()
    assert claim(run).guarantee == uls_plan(steps=2).guarantee()


def test_a_model_with_adapters_is_saved_apart_and_merged_and_stays_as_it_is(store, tmp_path):
    model, run = adapted_model(store), tmp_path / "run"
    trained(model, store, run)
    assert isinstance(model, peft.PeftModel)
    read = transformers.AutoModelForCausalLM.from_pretrained(run / "model").eval()
    rows = torch.tensor([[2, 3, 4, 5]])
    torch.testing.assert_close(read(rows).logits, model.eval()(rows).logits)
    adapter = load_file(run / "adapter" / "adapter_model.safetensors")
    assert all("lora_" in name for name in adapter)
    assert any(bool(value.any()) for name, value in adapter.items() if "lora_B" in name)
    assert finishing_digests(run)["weights"] == digest_of(run / "model")
    assert finishing_digests(run)["adapter"] == digest_of(run / "adapter")
    assert verify(run).problems == ()
    sgd(model)  # it can go on


def test_a_module_of_any_kind_is_saved_and_its_lineage_is_known(store, tmp_path):
    model, run = any_module(store), tmp_path / "run"
    trained(model, store, run, loss=on_selected)
    again = any_module(store)
    load_model(again, run / "model" / "model.safetensors")
    assert torch.equal(weights(again), weights(model))
    assert finishing_digests(run)["weights"] == digest_of(run / "model")
    assert verify(run).problems == ()
    with pytest.raises(UseError, match="no model of transformers") as caught:
        require_released(RunFolder(run))
    assert "safetensors.torch.load_model" in caught.value.hint


@pytest.mark.parametrize("before", fast_then_slow(["left", "saved"]))
def test_save_after_the_block_writes_the_settled_weights_and_no_others(store, tmp_path, before):
    model, run = toy_model(store), tmp_path / "run"
    private = trained(model, store, run, save=before == "saved")
    settled = finishing_digests(run)["weights"]
    assert settled == digest_of_weights(model)
    assert private.save() == run / "model"
    assert digest_of(run / "model") == settled
    with torch.no_grad():
        model.transformer.wpe.weight.add_(1e-3)
    with pytest.raises(UseError, match="not those that the run settled with"):
        private.save()
    assert digest_of(run / "model") == settled, "what was there is left alone"
    assert verify(run).problems == ()


@pytest.mark.slow
def test_invariant_13_twin_weights_exchanged_after_saving_are_caught(store, tmp_path):
    run = tmp_path / "run"
    trained(toy_model(store), store, run)
    forget(store.path)
    trained(toy_model(store), store, tmp_path / "other")
    saved = run / "model" / "model.safetensors"
    saved.write_bytes((tmp_path / "other" / "model" / "model.safetensors").read_bytes())
    with pytest.raises(UseError, match="not those that the run released"):
        claim(run)


def released(model, store, folder):
    write = partial(save_model, tokenizer=store.tokenizer_path, lineage=Lineage(parts=()))
    return release(model, RunFolder(folder), write)


@pytest.mark.parametrize("targets", [["wte"], ["lm_head"]])
def test_adapters_on_one_of_two_tied_ends_are_released_alone(store, tmp_path, targets):
    """Merged, they would change both, and compute something else."""
    base = toy_model(store)
    settings = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(base), settings)
    with pytest.warns(userdp.UserdpWarning, match="computes something else"):
        weights = released(adapted, store, tmp_path)
    assert weights == digest_of(tmp_path / "adapter")
    assert not (tmp_path / "model").exists()
    rows = torch.tensor([[2, 3, 4, 5]])
    over_base = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(rows).logits
    torch.testing.assert_close(adapted.eval()(rows).logits, over_base)


PREFIX = peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
PROMPT = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")


@pytest.fixture(params=[PREFIX, PROMPT], ids=["prefix", "prompt"])
def alone(request, store, tmp_path):
    """The run of adapters that cannot be merged, over a base in a folder."""
    shape = transformers.GPT2Config(
        vocab_size=store.meta.vocab_size, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(shape).save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.get_peft_model(base, copy.deepcopy(request.param))
    optimizer = sgd(model)
    plan, run = uls_plan(steps=2), tmp_path / "run"
    with userdp.make_private(model, optimizer, store, plan, out=run, loss=after_prompt) as private:
        for _ in private:
            optimizer.step()
        with pytest.warns(userdp.UserdpWarning, match="only the adapters are released"):
            assert private.save() == run / "adapter"
    return run


def after_prompt(model, input_ids, lengths):
    """Each row's loss; the logits of the virtual tokens before it are left out."""
    logits = model(input_ids=input_ids).logits[:, -input_ids.shape[1] :]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
    )
    real = torch.arange(1, input_ids.shape[1]) < lengths[:, None]
    return (losses * real).sum(1)


def test_adapters_that_cannot_be_merged_are_released_alone(store, alone, tmp_path):
    assert not (alone / "model").exists()
    assert verify(alone).problems == ()
    assert finishing_digests(alone)["weights"] == digest_of(alone / "adapter")
    out = userdp.export(alone, out=tmp_path / "out").export
    assert (out / "adapter" / "adapter_model.safetensors").exists()
    assert verify(out).problems == ()
    with pytest.raises(UseError, match="released only adapters") as caught:
        userdp.generate(alone, records=1)
    assert "PeftModel.from_pretrained" in caught.value.hint
    weights = alone / "adapter" / "adapter_model.safetensors"
    save_file({name: one + 1 for name, one in load_file(weights).items()}, weights)
    with pytest.raises(UseError, match="not those that the run released"):
        claim(alone)


@pytest.mark.slow
def test_invariant_13_a_resumed_run_without_steps_saves_no_other_runs_model(store, tmp_path):
    other, model = toy_model(store), toy_model(store)
    optimizer = sgd(model)
    private = make_private(model, optimizer, store, uls_plan(steps=2), out=tmp_path / "run")
    for _ in private:
        optimizer.step()
    private.close()
    run_all(other, store.path, uls_plan(), tmp_path / "other")
    options = {"out": tmp_path / "run", "resume": True}
    with private_run(model, sgd(model), store, uls_plan(steps=2), **options) as resumed:
        model.load_state_dict(other.state_dict())
        for save in (resumed.save, resumed.finish, resumed.save):
            with pytest.raises(UseError, match="released by another run"):
                save()
        resumed.close()
    assert not RunFolder(tmp_path / "run").finished
