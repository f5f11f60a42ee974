"""``userdp store stats --epsilon``: private answers, and no exact ones beside them."""

from __future__ import annotations

import json

import pytest

from tests.data.corpora import corpus, prepared
from userdp.claims import claim
from userdp.cli.app import run

pytest.importorskip("opendp", reason="the extra queries is not installed")


def test_private_answers_are_charged_and_exact_ones_are_not_shown(tmp_path, capsys):
    store = prepared(corpus(20), tmp_path / "store").path
    line = [
        "store",
        "stats",
        str(store),
        "--epsilon",
        "0.5",
        "--ask",
        "users",
        "--ask",
        "p90",
        "--json",
    ]
    assert run(line) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [answer["name"] for answer in shown["answers"]] == ["users", "p90"]
    assert "splits" not in shown
    assert claim(store).guarantee.epsilon == pytest.approx(0.5)
    assert run([*line[:4], "--ask", "mean"]) == 2
    assert run(["store", "stats", str(store), "--ask", "users"]) == 2
    assert claim(store).guarantee.epsilon == pytest.approx(0.5)
