"""`private.save()`: what a loop of one's own releases, and what the ledger says of it."""

import copy
import resource
from functools import partial

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, load_model, save_file

import userdp
from tests.gradients.campaign import losses
from tests.gradients.campaign.models import head_on_selected, toy
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import adapted, lines, moved, take, tiny_gpt2, toy_model, trained, weights
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.verify import verify
from userdp.claims.weights import digest_of
from userdp.core.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.training import private_run
from userdp.training.model_origin import digests_of
from userdp.training.released_model import release, require_released, save_model

ROWS = torch.tensor([[2, 3, 4, 5]])


def any_module(store):
    model = toy(head_on_selected)
    model.table = torch.nn.Embedding(store.meta.vocab_size, 8)
    model.head = torch.nn.Linear(8, store.meta.vocab_size)
    return model


def on_selected(model, input_ids, lengths):
    return losses.on_selected(model, input_ids, lengths)


def settled_with(run):
    """The digests of a finished run's last line, after its files were held against the ledger."""
    assert verify(run).problems == ()
    (line,) = (line for line in lines(run / "ledger.jsonl") if line["kind"] == "finish")
    return line["weights"]


def test_a_saved_model_is_the_settled_one_and_its_folder_is_whole(store, tmp_path):
    model, run = toy_model(store), tmp_path / "run"
    trained(model, store, run)
    read = transformers.AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "model")
    assert torch.equal(weights(read), weights(model))
    assert tokenizer("w3 w1")["input_ids"] == [5, 3]
    (released,) = StoreLedger(store.path).history().released
    assert [released.weights] == settled_with(run) == [digest_of(run / "model")]
    assert claim(run).guarantee == uls_plan(steps=2).guarantee()


@pytest.mark.parametrize("name", ["default", "mail"])
def test_adapters_are_saved_apart_and_merged_and_the_model_stays_as_it_is(store, tmp_path, name):
    model, run = adapted(toy_model(store), name), tmp_path / "run"
    trained(model, store, run)
    assert isinstance(model, peft.PeftModel)
    read = transformers.AutoModelForCausalLM.from_pretrained(run / "model").eval()
    torch.testing.assert_close(read(ROWS).logits, model.eval()(ROWS).logits)
    adapter = load_file(run / "adapter" / "adapter_model.safetensors")
    assert all("lora_" in name for name in adapter)
    assert any(bool(value.any()) for name, value in adapter.items() if "lora_B" in name)
    assert settled_with(run) == [digest_of(run / "adapter"), digest_of(run / "model")]


def test_a_module_of_any_kind_is_saved_and_its_lineage_is_known(store, tmp_path):
    model, run, again = any_module(store), tmp_path / "run", any_module(store)
    trained(model, store, run, loss=on_selected)
    load_model(again, run / "model" / "model.safetensors")
    assert torch.equal(weights(again), weights(model))
    assert settled_with(run) == [digest_of(run / "model")]
    with pytest.raises(UseError, match="no model of transformers") as caught:
        require_released(RunFolder(run))
    assert "safetensors.torch.load_model" in caught.value.hint


@pytest.mark.parametrize("before", fast_then_slow(["left", "saved"]))
def test_save_after_the_block_writes_the_settled_weights_and_no_others(store, tmp_path, before):
    model, run = toy_model(store), tmp_path / "run"
    private = trained(model, store, run, save=before == "saved")
    settled = digests_of(model).whole
    assert private.save() == run / "model"
    assert verify(run).problems == ()
    private.save(chat_template="{{ messages }}")
    template = run / "model" / "chat_template.jinja"
    assert verify(run).notes == ("The run is as written.",), "the last files that were saved"
    template.write_text("somebody's words")
    assert any(str(template) in problem for problem in verify(run).problems)
    private.save()
    moved(model)
    with pytest.raises(UseError, match="not those that the run settled with"):
        private.save()
    assert digest_of(run / "model") == settled, "what was there is left alone"
    assert settled_with(run) == [settled]


@pytest.mark.parametrize("targets", [["wte"], ["lm_head"]])
def test_adapters_on_one_of_two_tied_ends_are_released_alone(store, tmp_path, targets):
    """Merged, they would change both, and compute something else."""
    base = toy_model(store)
    how = {"target_modules": targets, "fan_in_fan_out": False, "init_lora_weights": False}
    model = adapted(copy.deepcopy(base), **how)
    write = partial(save_model, tokenizer=store.tokenizer_path, lineage=Lineage())
    with pytest.warns(userdp.UserdpWarning, match="computes something else"):
        assert release(model, RunFolder(tmp_path), write) == digest_of(tmp_path / "adapter")
    assert not (tmp_path / "model").exists()
    over_base = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    torch.testing.assert_close(model.eval()(ROWS).logits, over_base(ROWS).logits)


def after_prompt(model, input_ids, lengths):
    """Each row's loss; the logits of the virtual tokens before it are left out."""
    logits = model(input_ids=input_ids).logits[:, -input_ids.shape[1] :]
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), input_ids[:, 1:], reduction="none"
    )
    return (losses * (torch.arange(1, input_ids.shape[1]) < lengths[:, None])).sum(1)


@pytest.mark.parametrize("kind", [peft.PrefixTuningConfig, peft.PromptTuningConfig])
def test_adapters_that_cannot_be_merged_are_released_alone(store, begin, tmp_path, kind):
    run = tmp_path / "run"
    tiny_gpt2(store.meta.vocab_size).save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.get_peft_model(base, kind(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    with begin(uls_plan(steps=2), model=model, loss=after_prompt) as private:
        take(private)
        with pytest.warns(userdp.UserdpWarning, match="only the adapters are released"):
            assert private.save() == run / "adapter"
    assert not (run / "model").exists()
    assert settled_with(run) == [digest_of(run / "adapter")]
    out = userdp.export(run, out=tmp_path / "out")["export"]
    assert (out / "adapter" / "adapter_model.safetensors").exists()
    assert verify(out).problems == ()
    with pytest.raises(UseError, match="released only adapters") as caught:
        userdp.generate(run, records=1)
    assert "PeftModel.from_pretrained" in caught.value.hint
    path = run / "adapter" / "adapter_model.safetensors"
    save_file({name: one + 1 for name, one in load_file(path).items()}, path)
    with pytest.raises(UseError, match="not what the run released"):
        claim(run)


def test_a_look_while_the_model_is_written_steers_it_no_more(store, tmp_path, monkeypatch):
    def release_then_look(*arguments, **options):
        digest = release(*arguments, **options)
        StoreLedger(store.path).look("stats")  # in another terminal
        return digest

    monkeypatch.setattr(private_run, "release", release_then_look)
    trained(toy_model(store), store, tmp_path / "run")
    assert verify(tmp_path / "run").problems == ()


def test_a_full_disk_at_the_end_is_told_and_the_model_is_saved_again(store, tmp_path):
    private = trained(toy_model(store), store, tmp_path / "run", save=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(FailureError, match="cannot write the model"):
            private.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert private.save() == tmp_path / "run" / "model"
