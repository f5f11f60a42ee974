"""Every kind of line is written, and read back as it was."""

from tests.plans import uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.ledger import journal, lines
from userdp.ledger.parts import Bound, Choice, Query, Steps, Unclaimed
from userdp.plans import PrivateSelection, StepRecord

PLAN = uls_plan()
CHARGED = {"when": "now", "state": "s", "constants": "c", "base": {"parts": []}}
SELECTION = PrivateSelection(
    plans=(PLAN,), score_epsilon=0.1, repetitions=TruncatedNegativeBinomial.of_mean(5, eta=0.0)
)
PARTS = [
    Unclaimed(id="r"),
    Choice(id="r", tuning=SELECTION),
    Query(id="r", name="users", pure_epsilon=0.5),
    Bound(id="r", what="training by mine", bound=PLAN.guarantee(), steps=3),
]
LINES = [
    lines.Store(id="i", inode=1),
    lines.Charge(pays_for=Steps(id="r", plan=PLAN), logged=True, steered=False, **CHARGED),
    *(lines.Charge(pays_for=paid) for paid in PARTS),
    lines.BeginTuning(run_id="u", constants=("c",), slots={"a": "c"}),
    lines.Open(run_id="r", attempts=0, nonce="n"),
    lines.Settle(run_id="r", steps=5, early=False),
    lines.Release(run_id="r", weights="w", lineage={}),
    lines.Trial(run_id="t", slot="a", constants="c", base={}),
    lines.Answer(run_id="q", value=3),
    lines.Look(what="stats"),
    lines.Declare(constants="c"),
    lines.OpenBudget(run_id="b", filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5), when="now"),
    lines.Begin(run_id="r", plan=PLAN, facts={"seq_len": 8}, lineage={}),
    lines.Attempt(step=StepRecord.of_plan(PLAN)),
    lines.Finish(attempts=3, weights=("w",), files={"model/config.json": "d"}),
    lines.Saved(files={"model/config.json": "e"}),
    lines.Chosen(runs=2, looks=("train",)),
    lines.ReleaseLoss(split="train", epsilon=0.5, query_ids=("q",), told={"epsilon": 0.5}),
]


def test_there_is_one_of_each_kind_here():
    here = [one for one in vars(lines).values() if getattr(one, "__module__", "") == lines.__name__]
    kinds = [
        one
        for one in here
        if isinstance(one, type) and issubclass(one, lines.Line) and hasattr(one, "kind")
    ]
    assert [*dict.fromkeys(type(line) for line in LINES)] == kinds


def test_lines_are_read_back_as_they_were(tmp_path):
    journal.append(tmp_path / "ledger.jsonl", lambda before: LINES)
    journal._decoded.cache_clear()
    assert list(journal.read(tmp_path / "ledger.jsonl").lines) == LINES
