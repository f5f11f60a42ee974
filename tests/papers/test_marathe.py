"""The figures of Marathe et al. 2023 are computed and drawn, in small."""

from __future__ import annotations

import json

import pytest

from userdp.cli.app import run as userdp
from userdp.federated.accounting import AccountingName, Algorithm
from userdp.papers.marathe import federations, figure_2


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(federations, "SUBJECTS", 40)
    monkeypatch.setattr(federations, "ITEMS", 6.0)
    monkeypatch.setattr(federations, "SILOS", 2)
    monkeypatch.setattr(federations, "ROUNDS", 2)
    monkeypatch.setattr(federations, "ALPHAS", (None, 8.0))
    monkeypatch.setattr(figure_2, "FEMNIST_SUBJECTS", 300)
    monkeypatch.setattr(figure_2, "FEMNIST_BATCH", 64)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_reproduce_writes_the_figure(tiny, tmp_path, capsys, monkeypatch, number):
    few = [(Algorithm.FEDAVG, AccountingName.TIGHT), (Algorithm.HIGRADAVG, AccountingName.PAPER)]
    monkeypatch.setattr(federations, "cells", lambda: few)
    name = f"marathe-figure-{number}"
    assert userdp(["reproduce", name, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.csv").read_text().count("\n") > 1


def test_figure_2_counts_every_mini_batch_of_every_silo(tiny):
    rows = figure_2.rows()
    assert {row["alpha"] for row in rows} == {1.0, 8.0}
    assert sum(row["mini_batches"] for row in rows if row["alpha"] == 1.0) == 50 * 2
    assert max(row["largest_group"] for row in rows) > 1


def test_the_plan_of_a_figure_is_the_papers_or_the_tight_one(tiny):
    train = federations.data()
    paper = federations.small_plan(Algorithm.HIGRADAVG, AccountingName.PAPER, [train] * 2)
    tight = federations.small_plan(Algorithm.HIGRADAVG, AccountingName.TIGHT, [train] * 2)
    assert paper.rounds == 1
    assert paper.group_size == int(train.counts.max())
    assert tight.group_size == federations.CAP
    assert 3.99 < tight.guarantee().epsilon <= 4.0
