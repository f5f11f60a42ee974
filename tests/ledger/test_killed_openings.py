"""A kill between any two writes of an opening: it costs nothing, and nothing is forgotten."""

import contextlib

import pytest

from tests.ledger.runs import PLAN, Killed, go_on, new_store
from userdp.claims import claim
from userdp.claims.lineage import COPIED, Lineage
from userdp.core import files
from userdp.ledger import StoreLedger, journal
from userdp.ledger.charged_parts import Query


class Kill:
    """Ends the process before its write number ``at``, from 0; counts them."""

    def __init__(self, patch, at=None):
        self.writes = 0
        honest_file, honest_line = files.write_file, journal._write

        def before(honest):
            def write(*arguments, **options):
                if self.writes == at:
                    raise Killed
                self.writes += 1
                return honest(*arguments, **options)

            return write

        patch.setattr(files, "write_file", before(honest_file))
        patch.setattr(journal, "_write", before(honest_line))


def writes_of(monkeypatch, action):
    with monkeypatch.context() as patch:
        kill = Kill(patch)
        action()
    return kill.writes


@pytest.mark.parametrize("opening", ["first", "second"])
def test_invariant_7_a_kill_between_any_two_writes_of_an_opening_costs_nothing(
    tmp_path, monkeypatch, opening
):
    """Two kills in a row, before each pair of writes; then the run goes on to its end."""

    def prepared(name):
        here = new_store(tmp_path / name / "store")
        run = tmp_path / name / "run"
        if opening != "first":
            go_on(run, here)
        return run, here

    run, here = prepared("honest")
    count = writes_of(monkeypatch, lambda: go_on(run, here, 0))
    assert count >= 3
    for first in range(count):
        for second in range(count):
            run, here = prepared(f"{first}-{second}")
            for at in (first, second):
                with monkeypatch.context() as patch:
                    Kill(patch, at)
                    with contextlib.suppress(Killed):
                        go_on(run, here, 0)
            go_on(run, here, PLAN.steps)
            assert len(StoreLedger(here.path).history().charges) == 1, (first, second)
            assert claim(run).steps == PLAN.steps
            assert claim(run).guarantee.epsilon == PLAN.guarantee().epsilon
            assert COPIED not in claim(run).conditions, "a ledger begun by a kill is no copy"


def test_invariant_13_a_kill_at_the_beginning_forgets_nothing_of_the_base(tmp_path, monkeypatch):
    """Whoever goes on may have a model whose origin can no longer be looked up."""
    learned = Query(id="q", name="users", pure_epsilon=0.5)
    base = Lineage(parts=(learned,))
    honest = new_store(tmp_path / "honest" / "store")
    count = writes_of(monkeypatch, lambda: go_on(tmp_path / "honest/run", honest, 0, base=base))
    charged = 0
    for at in range(count):
        here = new_store(tmp_path / str(at) / "store")
        run = tmp_path / str(at) / "run"
        with monkeypatch.context() as patch:
            Kill(patch, at)
            with pytest.raises(Killed):
                go_on(run, here, 0, base=base)
        known = learned in [
            learned for one in StoreLedger(here.path).history().charges.values() if one.base
        ]
        charged += known
        go_on(run, here, PLAN.steps)
        assert (learned in claim(run).parts) == known, at
    assert charged >= 2
