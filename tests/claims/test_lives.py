"""Random lives of models: what is printed is neither below nor above what a second model says."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.claims.life import Life
from tests.plans import changed_plan
from tests.speed import fast_then_slow
from tests.training.conftest import prepared
from userdp.claims import claims as claims_module
from userdp.claims import lineage as lineage_module
from userdp.claims import weights as weights_module
from userdp.claims.lineage import Lineage, of_parts
from userdp.claims.parts import Query, Steps
from userdp.ledger import History, RunRecord
from userdp.ledger import lines as lines_module
from userdp.ledger import store as store_module
from userdp.ledger.place import Place
from userdp.training import opening as opening_module
from userdp.training import origin as origin_module

__all__ = ["prepared"]

LIVES = int(os.environ.get("USERDP_LIVES", "40"))
"""Beside those of `make test`; set the variable to 200 for half an hour of lives."""


@pytest.mark.pitfall(number=37)
@pytest.mark.parametrize("seed", range(3))
def test_invariant_13_every_claim_is_what_was_paid(prepared, tmp_path, seed):
    Life(tmp_path, prepared, seed).play(8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + LIVES))
def test_many_lives(prepared, tmp_path, seed):
    Life(tmp_path, prepared, seed).play(10)


def nothing(*args: object, **options: object) -> None:
    """Forgets what it should have written."""


def _forget_base(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(origin_module, "lineage_of_base", lambda *args, **options: Lineage())


def _forget_bases_in_totals(patch: pytest.MonkeyPatch) -> None:
    for module in (claims_module, lineage_module):
        patch.setattr(module, "bases_of", lambda history, charges: [])


def _forget_files(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(weights_module, "description_of", nothing)


def _forget_known_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lines_module.Release, "fold", nothing)


def _forget_answers(patch: pytest.MonkeyPatch) -> None:
    parts = claims_module.parts_of

    def unanswered(*args):
        return [part for part in parts(*args) if not isinstance(part, Query)]

    for module in (claims_module, lineage_module):
        patch.setattr(module, "parts_of", unanswered)


def _forget_what_answers_are_about(patch: pytest.MonkeyPatch) -> None:
    fold = lines_module.Query.fold
    patch.setattr(
        lines_module.Query,
        "fold",
        lambda self, history, at: fold(replace(self, base=None), history, at),
    )


def _forget_looks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lines_module.Look, "fold", nothing)


def _forget_earlier_runs(patch: pytest.MonkeyPatch) -> None:
    inherited = lineage_module.inherited
    patch.setattr(
        opening_module,
        "inherited",
        lambda *args: of_parts(
            part for part in inherited(*args).parts if not isinstance(part, Steps)
        ),
    )


def _forget_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Place, "is_other", lambda self, begun_as: False)


def _forget_openings(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(History, "require_last", nothing)


def _forget_further_charges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunRecord, "charges", property(lambda self: [self.run_id]))


def _take_adapters_for_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(origin_module, "are_fresh", lambda model, adapters: True)


def _forget_known_adapters(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        lines_module.Release, "is_new", lambda self, history: self.run_id in history.tunings
    )


def _forget_what_followed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claims_module, "followed", lambda run: run)


def _forget_what_a_loop_saw(patch: pytest.MonkeyPatch) -> None:
    look = store_module.StoreLedger.look
    patch.setattr(
        store_module.StoreLedger,
        "look",
        lambda self, what: None if what.startswith("make_private") else look(self, what),
    )


def _forget_steps_to_come(patch: pytest.MonkeyPatch) -> None:
    own = lineage_module._own_part

    def so_far(run):
        part, done = own(run), max(1, run.attempts)
        return replace(part, plan=changed_plan(run.plan, steps=done)) if run.plan else part

    patch.setattr(lineage_module, "_own_part", so_far)


def _forget_lost_ledgers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Place, "require_whole", nothing)


LOSSES = {
    _forget_base: ["train", "prepare_again", "go_on"],
    _forget_bases_in_totals: ["train", "prepare_again", "go_on"],
    _forget_files: ["train", "prepare_again", "go_on"],
    _forget_known_weights: ["plain", "stripped"],
    _forget_answers: ["ask", "train"],
    _forget_what_answers_are_about: ["train", "prepare_again", "evaluate", "train"],
    _forget_looks: ["look", "train"],
    _forget_earlier_runs: ["train", "train"],
    _forget_copies: ["ask", "copy_store", "train"],
    _forget_openings: ["stop", "copy_run"],
    _forget_further_charges: ["stop", "copy_run", "charge_again"],
    _forget_steps_to_come: ["stop"],
    _take_adapters_for_new: ["moved"],
    _forget_known_adapters: ["plain_adapters", "warm"],
    _forget_what_followed: ["best_of_three"],
    _forget_what_a_loop_saw: ["steered"],
    _forget_lost_ledgers: ["ask", "back_up", "ask", "put_back"],
}


@pytest.mark.parametrize("loss", fast_then_slow(LOSSES), ids=lambda loss: loss.__name__)
def test_invariant_13_twin_a_planted_loss_of_lineage_is_caught(
    prepared, tmp_path, monkeypatch, loss
):
    """The life that shows it is played as it is, and then with the loss."""
    for planted in (False, True):
        (tmp_path / f"{planted}").mkdir()
        life = Life(tmp_path / f"{planted}", prepared, seed=1)
        life.number, life.newest = 10, True  # old enough for a ledger to be put back
        if planted:
            loss(monkeypatch)
            with pytest.raises((AssertionError, RuntimeError)):
                life.played(LOSSES[loss])
        else:
            life.played(LOSSES[loss])
