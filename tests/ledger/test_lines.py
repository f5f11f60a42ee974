"""Every kind of line is written, read back as it was, and refused where a field is not of it."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.ledgers import reserve, run_with, settle
from tests.plans import uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger, journal, lines
from userdp.ledger.lines import RUN, STORE, Open, fold
from userdp.plans import PrivateSelection, Series, StepRecord

PLAN = uls_plan()
WORDS = {"run_id": "r", "when": "now", "state": "s", "constants": "c", "base": {"parts": []}}
SELECTION = PrivateSelection(
    plans=(PLAN,), score_epsilon=0.1, repetitions=TruncatedNegativeBinomial.of_mean(5, eta=0.0)
)
MADE = [
    lines.Store(id="i"),
    lines.Reserve(
        plan=encode(PLAN), recorded=None, again=None, logged=True, steered=False, **WORDS
    ),
    lines.Open(run_id="r", attempts=0, nonce="n"),
    lines.Release(run_id="r", weights="w", lineage={}),
    lines.Settle(run_id="r", steps=5, early=False, when="now"),
    lines.Selection(run_id="s", selection=SELECTION, when="now", state="s"),
    lines.Slots(run_id="s", slots={"a": "c"}),
    lines.Trial(run_id="t", slot="a", base={}),
    lines.Score(run_id="t", value=None),
    lines.Query(run_id="q", name="users", pure_epsilon=0.5, base=None, when="now", state="s"),
    lines.Answer(run_id="q", value=3),
    lines.Look(what="stats"),
    lines.Forget(before="a", after="b"),
    lines.Declare(constants="c"),
    lines.BeginTuning(run_id="u", constants=("c",)),
    lines.Total(epsilon=8.0, delta=1e-4),
    lines.OpenBudget(run_id="b", filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5), when="now"),
    lines.DeclareSeries(run_id="d", series=Series(plan=PLAN, runs=3), when="now"),
    lines.Copied(),
]
OF_A_RUN = [
    lines.Begin(run_id="r", plan=PLAN, facts={"seq_len": 8}, lineage={}),
    lines.OpenRun(nonce="n", charge="r"),
    lines.Lost(attempts=2),
    lines.RunCopied(),
    lines.Attempt(attempt=1, step=StepRecord.of_plan(PLAN)),
    lines.Finish(attempts=3, digests={"weights": None}, files={"model/config.json": "d"}),
    lines.SettleRun(attempts=3),
    lines.Chosen(runs=2, looks=("train",)),
    lines.ReleaseLoss(split="train", epsilon=0.5, query_ids=("q",), told={"epsilon": 0.5}),
]
EVERY = pytest.mark.parametrize("line", [*MADE, *OF_A_RUN], ids=lambda line: type(line).__name__)


def test_there_is_one_of_each_kind_here():
    assert [type(line) for line in MADE] == list(STORE.values())
    assert [type(line) for line in OF_A_RUN] == list(RUN.values())


@pytest.mark.parametrize(("made", "kinds"), [(MADE, STORE), (OF_A_RUN, RUN)])
def test_lines_are_read_back_as_they_were(tmp_path, made, kinds):
    journal.append(tmp_path / "ledger.jsonl", kinds, lambda before: made)
    journal._read.clear()
    assert journal.read(tmp_path / "ledger.jsonl", kinds)[0] == made


@EVERY
def test_a_line_without_a_field_or_with_one_of_another_type_is_refused(line):
    whole = encode(line)
    for field in fields(line):
        for broken in (
            {name: value for name, value in whole.items() if name != field.name},
            {**whole, field.name: object()},
            {**whole, "unknown": 1},
        ):
            with pytest.raises(UseError):
                decode(type(line), broken, what="line 1")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (MADE[4], "steps"),
        (OF_A_RUN[2], "attempts"),
        (OF_A_RUN[5], "attempts"),
        (OF_A_RUN[7], "runs"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_invariant_8_a_count_below_zero_which_would_make_a_claim_smaller_is_refused(line, name):
    with pytest.raises(UseError, match="below 0"):
        replace(line, **{name: -3})


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 701.0])
def test_invariant_8_an_epsilon_out_of_its_range_is_refused(epsilon):
    with pytest.raises(UseError):
        replace(MADE[9], pure_epsilon=epsilon)
    with pytest.raises(UseError):
        replace(OF_A_RUN[8], epsilon=epsilon)


@pytest.mark.parametrize(
    "line", [lines.Slots(run_id="nobody", slots={}), lines.Answer(run_id="nobody", value=1)]
)
def test_a_line_that_speaks_of_what_nothing_charged_is_refused(line):
    with pytest.raises(UseError, match="nobody"):
        fold([lines.Store(id="i"), line], Path("ledger.jsonl"))


def test_what_a_store_writes_folds_to_what_was_said(tmp_path):
    ledger = StoreLedger(tmp_path)
    reserve(ledger, "one", PLAN, base={"parts": []}, constants="c", logged=False)
    ledger.append(
        Open(run_id="one", nonce="n", attempts=0),
        require=lambda history: history.require_last("one", []),
    )
    settle(ledger, "one", steps=4, weights="w", lineage={"of": "one"})
    history = ledger.history()
    charge = history.charges["one"]
    assert (charge.plan, charge.steps, charge.settled, charge.at) == (PLAN, 4, True, 1)
    assert history.nonces == {"one": ("n", 0)}
    assert [(one.weights, one.lineage) for one in history.released] == [("w", {"of": "one"})]
    assert (history.lines, history.id) == (5, ledger.place.id)


def test_a_runs_record_is_opened_once(tmp_path, monkeypatch):
    from userdp.claims import claim

    run = run_with(tmp_path / "run", PLAN, 5, finished=True)
    opened, read = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or read(path))
    assert claim(run).complete
    assert opened == [run / "ledger.jsonl"]
