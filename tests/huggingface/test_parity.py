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

WITHOUT_NOISE = {
    "population": 40,
    "cohort_size": 40,  # everybody is drawn
    "group_size": 9,  # all that anybody wrote
    "steps": 1,
    "l2_clip_norm": 1e6,
    "noise_multiplier": 1e-13,
}


def mean_of_users(model, table):
    """The plain loss: each example's mean over its own targets, summed for a user, over users."""
    by_user = {}
    for row in table:
        ids = torch.tensor([*row["input_ids"]])
        logits = model(input_ids=ids[None]).logits[0]
        labels = torch.tensor(row.get("labels", row["input_ids"]))[1:]
        counted = labels != -100
        loss = cross_entropy(logits[:-1][counted], labels[counted])
        by_user.setdefault(row["author"], []).append(loss)
    return sum(torch.stack(losses).mean() for losses in by_user.values()) / len(by_user)


def sgd(model, rate=0.5):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def update(model, rate=0.5):
    """One step of plain gradient descent."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= rate * parameter.grad


def flat(model):
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def step_of(folder, **changes):
    """The weights after one step of a trainer without noise, and the same model before it."""
    model, before = toy_model(), toy_model()
    run = trainer(
        folder,
        model=model,
        optimizers=sgd(model),
        plan=uls_plan(**WITHOUT_NOISE),
        options=PrivateOptions(allow_large_delta=True),
        **changes,
    )
    run.train()
    return flat(run.model), before


@pytest.mark.slow
def test_without_noise_and_clipping_the_update_is_that_of_the_mean_of_users_loss(tmp_path):
    after, plain = step_of(tmp_path)
    mean_of_users(plain, tokenized(toy_tokenizer(tmp_path / "t"))).backward()
    update(plain)
    assert torch.allclose(after, flat(plain), atol=1e-6)
    assert not torch.allclose(after, flat(toy_model()), atol=1e-4)


def watch_generator(run):
    """Whether each step leaves the generator as it was, which the published seed has set."""
    step, left_alone = run.training_step, []

    def watched(*arguments):
        before = torch.get_rng_state()
        loss = step(*arguments)
        left_alone.append(torch.equal(torch.get_rng_state(), before))
        return loss

    run.training_step = watched
    return left_alone


@pytest.mark.slow
def test_invariant_14_the_seed_of_the_arguments_says_nothing_of_dropout(tmp_path):
    """Equal seeds, no noise, everybody drawn: only the masks can differ, and they do."""
    seen = []
    for name in ("one", "two"):
        model = toy_model(dropout=0.5)
        run = trainer(
            tmp_path / name,
            model=model,
            optimizers=sgd(model),
            plan=uls_plan(**WITHOUT_NOISE),
            options=PrivateOptions(allow_large_delta=True),
            arguments={"seed": 7},
        )
        left_alone = watch_generator(run)
        run.train()
        seen.append(flat(run.model))
        assert left_alone == [True]
    assert not torch.allclose(seen[0], seen[1], atol=1e-4)


def test_the_exact_loss_is_the_operators_alone(tmp_path, capsys):
    """It is in operator.jsonl, and in no log, console, state file or result."""
    told = {}

    class Ear(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **others):
            told.update(logs)

    run = trainer(
        tmp_path, callbacks=[Ear()], arguments={"report_to": "tensorboard", "disable_tqdm": False}
    )
    result = run.train()
    output = tmp_path / "out"
    every = [json.loads(line) for line in (output / "operator.jsonl").read_text().splitlines()]
    exact = [line for line in every if line["kind"] == "step"]
    assert [line["step"] for line in exact] == [1, 2, 3, 4, 5]
    assert (output / "operator.jsonl").stat().st_mode & 0o77 == 0
    assert set(told) == trainers.LOGGED
    assert result.training_loss != result.training_loss, "NaN: none is told"
    assert set(result.metrics) == {"epsilon", "delta"}
    printed = "".join(capsys.readouterr())
    for number in [line["loss"] for line in exact if line["units"]]:
        assert f"{number:.4f}"[:-1] not in printed
        spelled = f"{number:.6f}"[:-1]
        for path in output.rglob("*"):
            if path.is_file() and path.name != "operator.jsonl":
                assert spelled.encode() not in path.read_bytes(), path
    # Event files hold the time of each step, which tells how many examples it had.
    events = [path for path in output.rglob("*") if "tfevents" in path.name]
    assert events
    assert (output / "runs").stat().st_mode & 0o77 == 0
    assert all(path.is_relative_to(output / "runs") for path in events)
    history = json.loads((output / "checkpoint-5" / "trainer_state.json").read_text())
    assert all("loss" not in line for line in history["log_history"])
    assert history["total_flos"] == 0
    assert history["num_input_tokens_seen"] == 0


@pytest.mark.slow
def test_twin_a_trainer_that_tells_its_loss_is_noticed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trainers, "LOGGED", {*trainers.LOGGED, "loss"})
    run = trainer(tmp_path)
    run.train()
    assert any("loss" in line for line in run.state.log_history)
    assert "'loss'" in capsys.readouterr().out


@pytest.mark.slow
def test_twin_the_loss_that_a_trainer_averages_over_tokens_would_be_noticed(tmp_path):
    """`transformers` divides by the tokens of the whole batch: another update, by far."""
    after, plain = step_of(tmp_path)
    table = tokenized(toy_tokenizer(tmp_path / "t"))
    losses = []
    for row in table:
        ids = torch.tensor(row["input_ids"])
        losses.append(cross_entropy(plain(input_ids=ids[None]).logits[0, :-1], ids[1:]))
    torch.stack(losses).mean().backward()
    update(plain)
    assert not torch.allclose(after, flat(plain), atol=1e-4)
