"""Every public name of the library, on people whose every word is marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import userdp
from tests.secrets.conftest import CONFIG, PLAN, Planted, plant
from tests.secrets.outputs import EXACT, OF_A_STORE
from tests.secrets.planted import PEOPLE, Kind, measured_in, rows
from tests.secrets.scan import findings
from tests.secrets.test_commands import files, leaks_in_files
from tests.secrets.watch import listen
from tests.training.toy import private_run
from userdp.data.tokenize import BUNDLED_TOKENIZER
from userdp.training.models import new_model

USER = PEOPLE[17].id
NO_DATA = "a value or an error class that is made of no data"
EXCEPT_NUMBERS = frozenset(Kind) - OF_A_STORE


def own_loop(planted: Planted, **options: Any) -> None:
    model = new_model(CONFIG, vocab_size=planted.store.meta.vocab_size, seq_len=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = private_run(model, optimizer, planted.store, PLAN, out="own-run", **options)
    with made as private:
        for _ in private:
            optimizer.step()
        private.save()


def trainer(planted: Planted, kind: str = "UserLevelTrainer", **changes: Any) -> Any:
    """A trainer that logs wherever it can."""
    import datasets
    from transformers import PreTrainedTokenizerFast, TrainingArguments

    from tests.huggingface.toy import toy_model

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(BUNDLED_TOKENIZER))
    tokenizer.eos_token = tokenizer.pad_token = "<|endoftext|>"
    model = toy_model()
    model.resize_token_embeddings(4096)
    args = TrainingArguments(
        "trained",
        use_cpu=True,
        logging_steps=1,
        save_steps=2,
        report_to="tensorboard",
        log_level="debug",
    )
    table = datasets.Dataset.from_list(rows()[:300])
    if kind == "UserLevelTrainer":
        table = table.map(lambda row: {"input_ids": tokenizer(row["message"])["input_ids"]})
    options = {
        "model": model,
        "args": args,
        "train_dataset": table,
        "processing_class": tokenizer,
        "user_column": "author",
        "plan": PLAN,
        "store": Path("hf-store"),
        "seq_len": 16,
    }
    return getattr(userdp, kind)(**{**options, **changes})


def trained(planted: Planted) -> Any:
    made = trainer(planted)
    return made.train()


CALLS: dict[str, Callable[[Planted], Any] | str] = {
    "Clip": NO_DATA,
    "FailureError": NO_DATA,
    "Gaussian": NO_DATA,
    "Interrupted": NO_DATA,
    "PlainPlan": NO_DATA,
    "RunOptions": NO_DATA,
    "PrivateOptions": NO_DATA,
    "Plan": NO_DATA,
    "PoissonExamples": NO_DATA,
    "PoissonUsers": NO_DATA,
    "TrainConfig": NO_DATA,
    "UseError": NO_DATA,
    "UserdpError": NO_DATA,
    "UserdpWarning": NO_DATA,
    "__version__": NO_DATA,
    "Run": "what train returns",
    "UserLevelMixin": "what UserLevelTrainer is made of",
    "UserLevelSFTTrainer": "the test below",
    "UserStore": lambda planted: userdp.UserStore.open(planted.folder / "store"),
    "audit": lambda planted: userdp.audit(
        planted.folder / "run", store=planted.store, repeat=False, most_users=20
    ),
    "budget": lambda planted: userdp.budget(planted.store),
    "claim": lambda planted: userdp.claim(planted.folder / "run"),
    "dedup": "its command, in `tests.secrets.commands`",
    "evaluate": lambda planted: userdp.evaluate(planted.folder / "run", store=planted.store),
    "export": lambda planted: userdp.export(planted.folder / "run", out="shared"),
    "federate": "its command, in `tests.secrets.commands`",
    "forget": lambda planted: userdp.forget(planted.store, USER, statement="statement.txt"),
    "generate": lambda planted: userdp.generate(
        planted.folder / "run", records=2, max_tokens=4, out="synthetic.jsonl"
    ),
    "make_private": own_loop,
    "members": lambda planted: userdp.members(planted.store, user=USER, statement="statement.txt"),
    "plan": lambda planted: userdp.plan(
        planted.store,
        model="bundled",
        epsilon=4,
        budget=16,
        steps=3,
        population=20_000,
        most_noise=1000,
        norms_out="norms.json",
        settings=["measure.users=6", "measure.max_group_size=2"],
    ),
    "prepare": lambda planted: userdp.prepare(
        rows(), user="author", text="message", out="store", seq_len=16
    ),
    "report": lambda planted: userdp.report(planted.folder / "run", out="public.html", public=True),
    "settle": lambda planted: userdp.settle(planted.folder / "run"),
    "score": lambda planted: userdp.score(planted.store, out="scores.arrow"),
    "account": NO_DATA,
    "selftest": NO_DATA,
    "stats": lambda planted: userdp.stats(planted.store),
    "train": lambda planted: userdp.train(
        planted.store, PLAN, config=CONFIG, out="run", report_to=("tensorboard",)
    ),
    "tune": "its command, in `tests.secrets.commands`",
    "UserLevelTrainer": trained,
    "verify": lambda planted: userdp.verify(planted.folder / "run"),
}
OWN = {"forget", "settle"}
SLOW = {"audit", "plan", "UserLevelTrainer", "settle", "forget", "evaluate"}
CALLED = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name, call in CALLS.items()
    if callable(call)
]


def test_every_public_name_has_a_row():
    assert set(CALLS) == set(userdp.__all__)


@pytest.mark.parametrize("name", CALLED)
def test_what_a_function_says_and_writes(name, planted, tmp_path, monkeypatch, capfd):
    place = tmp_path / "place"
    place.mkdir()
    if name in OWN:
        planted = plant(tmp_path / "own", trained=name == "settle", finished=False)
    monkeypatch.chdir(place)
    before = files(place, planted.folder)
    call = CALLS[name]
    said = listen(lambda: call(planted), capfd, tmp_path / "temporary")
    assert said.error is None, said.channels["trace"].decode()
    measured = (measured_in(path) for path in place.rglob("operator.jsonl"))
    secrets = replace(planted.secrets, measured=planted.secrets.measured.union(*measured))
    for channel, data in said.channels.items():
        assert findings(data, secrets) == [], channel
    shown = f"{said.value}\n{said.value!r}".encode()
    assert findings(shown, secrets, allowed=OF_A_STORE) == [], "what a notebook shows of the value"
    assert leaks_in_files(before, secrets, place, planted.folder) == []


class Quoting(torch.nn.Module):
    """A model that quotes its input when it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        raise IndexError(f"cannot look up {rows.tolist()}")


def quoting_loss(model: torch.nn.Module, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A loss that quotes its input."""
    raise ValueError(f"no loss for {rows.tolist()} of {lengths.tolist()}")


@pytest.mark.parametrize("fault", ["loss", "model"])
def test_a_loop_whose_loss_or_model_quotes_its_rows(fault, planted, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model = Quoting()
    loss = quoting_loss if fault == "loss" else lambda model, rows, lengths: model(rows)

    def call() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with userdp.make_private(
            model, optimizer, planted.store, PLAN, out="own-run", loss=loss
        ) as private:
            for _ in private:  # the first draw may be empty
                optimizer.step()

    said = listen(call, capfd, tmp_path / "temporary")
    assert isinstance(said.error, IndexError | ValueError), "the code's own, on made-up rows"
    for channel, data in said.channels.items():
        assert findings(data, planted.secrets) == [], channel


@pytest.mark.parametrize("kind", ["UserLevelTrainer", "UserLevelSFTTrainer"])
@pytest.mark.slow
def test_a_trainer(kind, planted, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    changes = {"text_column": "message"} if kind == "UserLevelSFTTrainer" else {}
    if kind == "UserLevelSFTTrainer":
        from trl import SFTConfig

        changes["args"] = SFTConfig(
            "trained", use_cpu=True, logging_steps=1, report_to="tensorboard",
            dataset_text_field="message", bf16=False,
        )  # fmt: skip

    said = listen(lambda: trainer(planted, kind, **changes).train(), capfd, tmp_path / "temporary")
    assert said.error is None, said.channels["trace"].decode()
    for channel, data in said.channels.items():
        assert findings(data, planted.secrets, allowed=EXACT) == [], channel
