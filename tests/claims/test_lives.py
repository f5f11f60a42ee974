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
from userdp.claims import ledger_lineage as descent_module
from userdp.claims import weights as weights_module
from userdp.claims.lineage import Lineage, of_parts
from userdp.ledger import History
from userdp.ledger import permitted_lines as admission_module
from userdp.ledger import store_ledger as store_module
from userdp.ledger.charged_parts import Query, Steps
from userdp.ledger.lines import Release
from userdp.training import model_origin as origin_module
from userdp.training import open_run

__all__ = ["prepared"]

LIVES = int(os.environ.get("USERDP_LIVES", "40"))
"""Beside those of `make test`; set the variable to 200 for half an hour of lives."""


@pytest.mark.pitfall(number=37)
@pytest.mark.parametrize("seed", fast_then_slow([0, 1, 2]))
def test_invariant_13_every_claim_is_what_was_paid(prepared, tmp_path, seed):
    Life(tmp_path, prepared, seed).play(8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 100 + LIVES))
def test_many_lives(prepared, tmp_path, seed):
    Life(tmp_path, prepared, seed).play(10)


def nothing(*args: object, **options: object) -> None:
    """Forgets what it should have written."""


def without_answers(history, charges, parts_of=claims_module.parts_of):
    return [part for part in parts_of(history, charges) if not isinstance(part, Query)]


def about_nothing(history, charges, bases_of=descent_module.bases_of):
    return bases_of(history, [one for one in charges if not isinstance(one.pays_for, Query)])


def without_runs(*args, inherited=descent_module.inherited):
    return of_parts(part for part in inherited(*args).parts if not isinstance(part, Steps))


def look_of_no_loop(self, what, look=store_module.StoreLedger.look):
    return None if what.startswith("make_private") else look(self, what)


def of_winners(history, line, is_new=admission_module.is_new):
    return line.run_id in history.tunings if isinstance(line, Release) else is_new(history, line)


def so_far(run, own=descent_module._own_part):
    part, done = own(run), max(1, run.attempts)
    return replace(part, plan=changed_plan(run.plan, steps=done)) if run.plan else part


COMPOSING = (claims_module, descent_module)
LOSSES = {
    "base": ([weights_module], "_of_weights", lambda *args: Lineage(),
             "train prepare_again go_on"),
    "bases in totals": (COMPOSING, "bases_of", lambda history, charges: [],
                        "train prepare_again go_on"),
    "files": ([weights_module], "description_of", nothing, "train prepare_again go_on"),
    "known weights": ([History], "released", (), "plain stripped"),
    "answers": (COMPOSING, "parts_of", without_answers, "ask train"),
    "what answers are about": (COMPOSING, "bases_of", about_nothing,
                               "train prepare_again evaluate train"),
    "looks": ([History], "looks", (), "look train"),
    "earlier runs": ([open_run], "inherited", without_runs, "train train"),
    "copies": ([History], "copied", False, "ask copy_store train"),
    "steps to come": ([descent_module], "_own_part", so_far, "stop"),
    "adapters from elsewhere": ([origin_module], "are_fresh", lambda *args: True,
                                "adapters:moved"),
    "known adapters": ([admission_module], "is_new", of_winners, "plain_adapters adapters:newest"),
    "what followed": ([claims_module], "chosen_among", lambda run, store: None, "best_of_three"),
    "what a loop saw": ([store_module.StoreLedger], "look", look_of_no_loop, "loop:steered"),
}  # fmt: skip


@pytest.mark.parametrize("loss", fast_then_slow(LOSSES))
def test_invariant_13_twin_a_planted_loss_of_lineage_is_caught(
    prepared, tmp_path, monkeypatch, loss
):
    """The life that shows it is played as it is, and then where that is forgotten."""
    owners, name, forgetful, played = LOSSES[loss]
    for planted in (False, True):
        (tmp_path / f"{planted}").mkdir()
        life = Life(tmp_path / f"{planted}", prepared, seed=1)
        life.newest = True
        if planted:
            for owner in owners:
                monkeypatch.setattr(owner, name, forgetful)
            with pytest.raises((AssertionError, RuntimeError)):
                life.played(played.split())
        else:
            life.played(played.split())
