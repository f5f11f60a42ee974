"""What a private step computes, against losses and gradients that are computed here by hand."""

import json

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback

from tests.huggingface.toy import tokenized, toy_model, toy_tokenizer, trainer
from tests.plans import uls_plan
from userdp.training.config import PrivateOptions
from userdp.training.huggingface import trainer as trainers

EVERYBODY = {"population": 40, "cohort_size": 40, "group_size": 9}  # and all that anybody wrote
WITHOUT_NOISE = uls_plan(**EVERYBODY, steps=1, l2_clip_norm=1e6, noise_multiplier=1e-13)
RATE = 0.5


def flat(model):
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def step_of(folder, model, **changes):
    """A trainer that has taken one step of SGD without noise."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    options = {"plan": WITHOUT_NOISE, "options": PrivateOptions(allow_large_delta=True)}
    run = trainer(folder, model=model, optimizers=(optimizer, schedule), **options, **changes)
    run.train()
    return run


def after_plain_step(table, *, of_users):
    """The weights after a step on the mean of users' losses, or on that of all examples."""
    model, by_user = toy_model(), {}
    for row in table:
        ids = torch.tensor(row["input_ids"])
        loss = cross_entropy(model(input_ids=ids[None]).logits[0, :-1], ids[1:])
        by_user.setdefault(row["author"] if of_users else None, []).append(loss)
    torch.stack([torch.stack(losses).mean() for losses in by_user.values()]).mean().backward()
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    return flat(model)


@pytest.mark.slow
def test_without_noise_and_clipping_the_update_is_that_of_the_mean_of_users_loss(tmp_path):
    """The twin, of another mean (`transformers` averages over tokens), is another update by far."""
    found = flat(step_of(tmp_path, toy_model()).model)
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    assert torch.allclose(found, after_plain_step(table, of_users=True), atol=1e-6)
    assert not torch.allclose(found, after_plain_step(table, of_users=False), atol=1e-4)
    assert not torch.allclose(found, flat(toy_model()), atol=1e-4)


def test_the_exact_loss_is_the_operators_alone(tmp_path, capsys):
    """It is in operator.jsonl, and in no log, console, state file or result."""
    told, output = {}, tmp_path / "out"

    class Ear(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            told.update(logs)

    drawn = {"report_to": "tensorboard", "disable_tqdm": False}
    result = trainer(tmp_path, callbacks=[Ear()], arguments=drawn).train()
    every = [json.loads(line) for line in (output / "operator.jsonl").read_text().splitlines()]
    exact = [line for line in every if line["kind"] == "step"]
    assert [line["step"] for line in exact] == [1, 2, 3, 4, 5]
    assert (output / "operator.jsonl").stat().st_mode & 0o77 == 0
    assert set(told) == trainers.LOGGED
    assert result.training_loss != result.training_loss, "NaN: none is told"
    assert set(result.metrics) == {"epsilon", "delta"}
    printed = "".join(capsys.readouterr())
    files = [p for p in output.rglob("*") if p.is_file() and p.name != "operator.jsonl"]
    for number in [line["loss"] for line in exact if line["units"]]:
        assert f"{number:.4f}"[:-1] not in printed
        assert not [p for p in files if f"{number:.6f}"[:-1].encode() in p.read_bytes()]
    # Event files hold the time of each step, which tells how many examples it had.
    events = [path for path in files if "tfevents" in path.name]
    assert events
    assert (output / "runs").stat().st_mode & 0o77 == 0
    assert all(path.is_relative_to(output / "runs") for path in events)
    history = json.loads((output / "checkpoint-5" / "trainer_state.json").read_text())
    assert all("loss" not in line for line in history["log_history"])
    assert (history["total_flos"], history["num_input_tokens_seen"]) == (0, 0)


@pytest.mark.slow
def test_twin_a_trainer_that_tells_its_loss_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainers, "LOGGED", {*trainers.LOGGED, "loss"})
    run = trainer(tmp_path)
    run.train()
    assert any("loss" in line for line in run.state.log_history)
    assert "'loss'" in capsys.readouterr().out
