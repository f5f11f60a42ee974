"""Lives of models, played by commands; `Truth` keeps by hand what is to be printed of them.

It knows nothing of `userdp.claims`: prices are numbers that the plans were made with.
"""

from __future__ import annotations

import math
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import peft
import torch

from tests.claims.lives import PLAIN, PLAN, SHAPE, Teller, begin, train_from
from tests.data.corpora import ListSource, interleaved
from tests.sweeping.launch import request
from tests.training.toy import adapted, cycles, loaded, private_run, sgd, toy_model, toy_store
from userdp.claims.lineage import Lineage
from userdp.data.pipeline import append_records
from userdp.data.user_store import UserStore
from userdp.gradients import trainable_parameters
from userdp.sweeping.runs import run_sweep
from userdp.training.private_run import make_private
from userdp.training.released_model import save_model

EPSILON = PLAN.guarantee().epsilon
ASKED = 0.5


@dataclass
class People:
    """A store, as its ledger should tell it.

    Args:
        paid: charged in its ledger, by a name of ours.
        learned: what models descend from that its runs began from, or that its answers are about.
        conditional: something was charged here whose own claim rests on a condition.
        doubtful: a run here began from what rests on a condition, which later runs inherit.
        compared: exact numbers of its private runs were shown, which could choose among them.
    """

    paid: dict[str, float] = field(default_factory=dict)
    learned: dict[str, float] = field(default_factory=dict)
    looked: bool = False
    conditional: bool = False
    copied: bool = False
    doubtful: bool = False
    compared: bool = False

    @property
    def runs(self) -> set[str]:
        """Those that have a price."""
        return {name for name in finite(self.paid) if not name.startswith("query")}


@dataclass
class Model:
    """A run and what it descends from: prices by a name of ours, and whether it is conditional.

    Args:
        own: the name of its own price.
        conditional: whether what is known when it begins makes it so; see `Truth.conditional`.
        adapters: a copy of what it released beside its merged model, if it has such.
    """

    own: str
    store: str
    paid: dict[str, float]
    conditional: bool
    done: bool = True
    latest: bool = True
    adapters: Path | None = None

    @property
    def epsilon(self) -> float:
        return math.fsum(self.paid.values())


class Truth:
    """What every claim must be."""

    def __init__(self) -> None:
        self.people: dict[str, People] = {}
        self.models: dict[str, Model] = {}

    def train(
        self,
        run: str,
        store: str,
        base: str | None,
        *,
        clean: bool,
        done: bool,
        price: float = EPSILON,
        logged: bool = True,
    ) -> None:
        people = self.people[store]
        from_base = self.models[base].paid if base else {}
        people.doubtful |= not clean or bool(base and self.models[base].conditional)
        conditional = people.looked or people.copied or people.doubtful
        paid = {**from_base, **finite(people.learned), **finite(people.paid)}
        self.models[run] = Model(run, store, {**paid, run: price}, conditional, done)
        people.paid[run] = price
        people.conditional |= conditional
        people.looked |= logged  # its operator saw losses
        people.compared |= logged
        people.learned |= from_base

    def plain(self, run: str, store: str) -> None:
        self.models[run] = Model(run, store, {run: math.inf}, conditional=True)
        self.people[store].paid[run] = math.inf
        self.people[store].looked = True

    def conditional(self, name: str) -> bool:
        """Whether a model's claim rests on a condition by now: it may have been chosen."""
        model = self.models[name]
        people = self.people[model.store]
        others = people.runs - {model.own}
        chosen = bool(others) if people.compared else bool(others - model.paid.keys())
        return model.conditional or chosen

    def ask(self, query: str, store: str, about: str | None = None) -> None:
        """An answer about a model says something of all that the model learned from."""
        people = self.people[store]
        people.paid[query] = ASKED
        people.conditional |= people.looked  # its price is chosen when it is asked
        if about:
            people.learned |= self.models[about].paid
            rests = self.conditional(about)
            people.looked |= rests
            people.conditional |= rests


class Life:
    """Plays steps of a life on real folders, and tells the truth of each."""

    def __init__(self, folder: Path, prepared: Path, seed: int) -> None:
        self.folder, self.tell = folder, Teller()
        self.draw, self.truth, self.number = random.Random(seed), Truth(), 0
        shutil.copytree(prepared, folder / "store-0")
        self.truth.people["store-0"] = People()
        self.copies: list[tuple[str, str]] = []
        self.log: list[str] = []
        self.newest = False  # whether steps are about the newest store and model, not any

    def new(self, kind: str) -> str:
        self.number += 1
        return f"{kind}-{self.number}"

    def one(self, known: list[str]) -> str | None:
        if self.newest:
            return known[-1] if known else None
        return self.draw.choice(known) if known else None

    def model(self) -> str | None:
        return self.one([name for name, model in self.truth.models.items() if model.done])

    def unfinished(self) -> list[str]:
        return [name for name, model in self.truth.models.items() if not model.done]

    def ask(self, store: str) -> None:
        self.tell.done("store", "stats", self.folder / store, "--epsilon", ASKED, "--ask", "users")
        self.truth.ask(self.new("query"), store)

    def look(self, store: str) -> None:
        self.tell.done("store", "stats", self.folder / store)
        self.truth.people[store].looked = True

    def train(self, store: str) -> None:
        run = self.new("run")
        begin(UserStore.open(self.folder / store), self.folder / run)
        self.truth.train(run, store, None, clean=True, done=True)

    def stop(self, store: str) -> None:
        run = self.new("run")
        begin(UserStore.open(self.folder / store), self.folder / run, stop=2, checkpoint_every=1)
        self.truth.train(run, store, None, clean=True, done=False)

    def resume(self, store: str) -> None:
        for run in self.unfinished()[:1]:
            model, status = self.truth.models[run], self.resumed(run)
            assert (status == 0) == model.latest, f"{run} resumed with status {status}"
            model.done = model.latest

    def resumed(self, run: str) -> int:
        place = self.folder / self.truth.models[run].store
        return self.tell("train", place, "--out", self.folder / run, "--resume")[0]

    def copy_run(self, store: str) -> None:
        """An unfinished run is copied, and the copy goes on first: the original is then refused."""
        for run in [one for one in self.unfinished() if self.truth.models[one].latest][:1]:
            copy, model = self.new("run"), self.truth.models[run]
            shutil.copytree(self.folder / run, self.folder / copy)
            first, second = self.draw.sample([run, copy], 2)
            self.truth.models[copy] = replace(model, paid=dict(model.paid))
            assert self.resumed(first) == 0
            assert self.resumed(second) == 2
            self.truth.models[first].done = True
            self.truth.models[second].latest = False

    def on_top(self, store: str, place: Path, base: str | None, *, clean: bool = True) -> None:
        """A run on top of the model in a folder."""
        run = self.new("run")
        assert train_from(self.tell, self.folder / store, self.folder / run, place)[0] == 0
        self.truth.train(run, store, base, clean=clean, done=True)

    def go_on(self, store: str) -> None:
        """Training on top of a released model, wherever it lies and whatever it is called."""
        if base := self.model():
            place = self.folder / base / "model"
            if self.draw.random() < 2 / 3:
                place = shutil.copytree(place, self.folder / self.new("gpt"))
            self.on_top(store, place, base)

    def stripped(self, store: str) -> None:
        """All that says where weights come from is taken off: the store's ledger may know them."""
        if base := self.model():
            place = shutil.copytree(self.folder / base / "model", self.folder / self.new("gpt"))
            (place / "userdp.json").unlink()
            known = base in self.truth.people[store].paid
            self.on_top(store, place, base if known else None, clean=known)

    def adapters(self, store: str, of: str = "") -> None:
        """A loop over adapters: new ones, those of an earlier run, or ones that moved elsewhere."""
        earlier = [name for name, model in self.truth.models.items() if model.adapters]
        of = earlier[-1] if of == "newest" else of or self.draw.choice(["new", "moved", *earlier])
        run, opened = self.new("run"), UserStore.open(self.folder / store)
        place = self.folder / "base-model"
        if not place.exists():
            save_model(toy_model(opened), place, tokenizer=opened.tokenizer_path, lineage=Lineage())
        if of in self.truth.models:
            held = self.truth.models[of].adapters
            model = peft.PeftModel.from_pretrained(loaded(place), held, is_trainable=True)
        else:
            model = adapted(loaded(place), target_modules=["c_attn"])
        if of == "moved":
            for one in trainable_parameters(model).values():
                one.data.add_(0.01)
        optimizer = sgd(model, 0.5)
        with make_private(model, optimizer, opened, PLAN, out=self.folder / run) as private:
            for _ in private:
                optimizer.step()
            private.save()
        known = of if of in self.truth.people[store].paid else None
        clean = known is not None or of == "new"
        self.truth.train(run, store, known, clean=clean, done=True, logged=False)
        self.keep_adapters(run)

    def keep_adapters(self, run: str) -> None:
        kept = self.folder / self.new("adapter")
        self.truth.models[run].adapters = shutil.copytree(self.folder / run / "adapter", kept)

    def plain_adapters(self, store: str) -> None:
        self.plain(store, "--lora-rank", 2)
        self.keep_adapters(list(self.truth.models)[-1])

    def plain(self, store: str, *more: object) -> None:
        run = self.new("plain")
        # Without a seed of its own, two of them on like stores are one model.
        options = (*PLAIN, *("--set", f"learning.seed={self.number}"), *SHAPE, *more)
        self.tell.done("train", self.folder / store, "--out", self.folder / run, *options)
        self.truth.plain(run, store)

    def evaluate(self, store: str) -> None:
        if run := self.model():
            options = ("--store", self.folder / store, "--no-base", "--epsilon", ASKED)
            status, _ = self.tell("evaluate", self.folder / run, *options)
            assert (status == 0) == (self.truth.models[run].epsilon < math.inf)
            if status == 0:
                self.truth.ask(self.new("query"), store, run)

    def sweep(self, store: str) -> None:
        """Two candidates; by exact losses, or one of them by private selection."""
        name, opened = self.new("sweep"), UserStore.open(self.folder / store)
        private = self.draw.random() < 0.5
        asked = request(opened, "private-selection" if private else "non-private", plan=PLAN)
        run_sweep(opened, self.folder / name, asked)
        winner = f"{name}/winner"
        price = asked.tuning.guarantee().epsilon if asked.tuning else EPSILON
        self.truth.train(winner, store, None, clean=private, done=True, price=price)
        trial, loser = f"{name}/trial-001", self.new("loser")
        first = Model(winner, store, dict(self.truth.models[winner].paid), conditional=True)
        self.truth.models[trial] = first
        if private:
            first.paid[winner] = math.inf
        else:
            self.truth.people[store].paid[loser] = EPSILON
        self.exported(trial)
        del self.truth.models[trial]  # what descends from it may be known as its winner, or not

    def export(self, store: str) -> None:
        if (model := self.model()) is not None:
            self.exported(model)

    def exported(self, name: str) -> None:
        """What leaves says what the run says, also to whoever has nothing else."""
        out, finite = self.folder / self.new("export"), self.truth.models[name].epsilon < math.inf
        status, said = self.tell("export", self.folder / name, "--out", out)
        assert (status == 0) == finite, (name, status, self.log)
        if finite:
            for claim in (said["claim"], self.tell.done("verify", out)["claim"]):
                same(claim, self.truth.models[name].epsilon, self.log)
                assert bool(claim["conditions"]) == self.truth.conditional(name), (name, self.log)

    def best_of_three(self, store: str) -> None:
        """Three runs, the losses of one of which are looked at; the first is handed on."""
        first = None
        for _ in range(3):
            self.train(store)
            first = first or list(self.truth.models)[-1]
        self.tell.done("evaluate", self.folder / first, "--store", self.folder / store, "--no-base")
        self.exported(first)

    def loop(self, store: str, how: str = "") -> None:
        """A loop of one's own whose learning rate follows the loss, or one that sees no loss."""
        steered = how == "steered" or (not how and self.draw.random() < 0.5)
        run, opened = self.new("run"), UserStore.open(self.folder / store)
        model = toy_model(opened)
        optimizer = sgd(model)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        options = {"out": self.folder / run, "base": Lineage(), "exact_log": steered}
        with private_run(model, optimizer, opened, PLAN, **options) as private:
            for step in private:
                optimizer.step()
                loss = step.operator["loss"] if steered else 1.0
                if loss is not None:  # of an empty cohort
                    schedule.step(loss)
            private.save()
        self.truth.train(run, store, None, clean=not steered, done=True, logged=steered)

    def append(self, store: str) -> None:
        """More people in the same store; a run that began before would refuse to go on."""
        if not any(self.truth.models[run].store == store for run in self.unfinished()):
            more = ListSource(interleaved(cycles(2, seed=self.draw.randrange(99))))
            append_records(more, self.folder / store)

    def prepare_again(self, store: str) -> None:
        name = self.new("store")
        toy_store(self.folder / f"made-{name}").path.rename(self.folder / name)
        self.truth.people[name] = People()

    def copy_store(self, store: str) -> None:
        name, people = self.new("store"), self.truth.people[store]
        shutil.copytree(self.folder / store, self.folder / name)
        paid, learned = dict(people.paid), dict(people.learned)
        copied = bool(people.paid) or people.looked
        self.truth.people[name] = replace(people, paid=paid, learned=learned, copied=copied)

    STEPS = (
        "ask", "look", "train", "stop", "resume", "copy_run",
        "go_on", "stripped", "plain", "evaluate", "sweep", "append", "prepare_again", "copy_store",
        "export", "best_of_three", "loop",
        "adapters", "plain_adapters",
    )  # fmt: skip

    def play(self, steps: int) -> None:
        self.played([self.draw.choice(self.STEPS) for _ in range(steps)])

    def played(self, names: list[str]) -> None:
        """The claims are held against the truth after every step, ``STEP`` or ``STEP:HOW``."""
        for name in names:
            step, *how = name.split(":")
            store = str(self.one([*self.truth.people]))
            self.log.append(f"{name} {store}")
            getattr(self, step)(store, *how)
            self.check()

    def check(self) -> None:
        for name, model in self.truth.models.items():
            status, said = self.tell("account", "--ledger", self.folder / name / "ledger.jsonl")
            assert status == 0
            same(said, model.epsilon, self.log)
            if model.epsilon < math.inf:
                assert bool(said["conditions"]) == self.truth.conditional(name), (
                    name, said, self.log,
                )  # fmt: skip
        for name, people in self.truth.people.items():
            if people.paid:
                _, said = self.tell("account", "--ledger", self.folder / name)
                everything = people.learned | people.paid
                total = math.fsum(everything.values())
                same(said, total, self.log)
                if total < math.inf:
                    conditional = people.conditional or people.copied
                    assert bool(said["conditions"]) == conditional, (name, said, self.log)


def finite(paid: dict[str, float]) -> dict[str, float]:
    return {name: price for name, price in paid.items() if price < math.inf}


def same(said: dict, epsilon: float, log: list[str]) -> None:
    printed = float(said["epsilon"])
    assert math.isclose(printed, epsilon, rel_tol=1e-9), (printed, epsilon, log)
