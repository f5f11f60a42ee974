"""The figures of Marathe et al. 2023 are computed and drawn, in small."""

from __future__ import annotations

import json
import math

import pytest

from papers.__main__ import main
from papers.marathe import figure_1, figure_2, figure_3
from papers.marathe.federations import NONE, PAPER_SQRT, TIGHT, Size
from papers.marathe.published import Reduction


@pytest.fixture
def tiny(monkeypatch):
    size = Size(silos=2, silos_per_round=2, subjects=40, items_per_subject=6.0, planned_rounds=2)
    few = {("fedavg", NONE): 0.3, ("higradavg-dp", PAPER_SQRT): 1.0, ("local-group-dp", TIGHT): 1.0}
    for module in (figure_1, figure_3):
        monkeypatch.setattr(module, "SIZE", size)
        monkeypatch.setattr(module, "RATES", few)
    for module in (figure_1, figure_2, figure_3):
        monkeypatch.setattr(module, "SEEDS", (0, 1))
    monkeypatch.setattr(figure_2, "SILOS", 2)
    for module in (figure_2, figure_3):
        monkeypatch.setattr(module, "ALPHAS", (None, 8.0))
    monkeypatch.setattr(figure_2, "FEMNIST_SUBJECTS", 300)
    monkeypatch.setattr(figure_2, "FEMNIST_BATCH", 64)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_reproduce_writes_the_figure(tiny, tmp_path, capsys, number):
    name = f"marathe-figure-{number}"
    assert main([name, "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.csv").read_text().count("\n") > 1


def test_figure_2_counts_every_mini_batch_of_every_silo(tiny):
    rows = figure_2.rows()
    assert {row["alpha"] for row in rows} == {1.0, 8.0}
    assert sum(row["mini_batches"] for row in rows if row["alpha"] == 1.0) == 50 * 2 * 2
    assert max(row["largest_group"] for row in rows) > 1


@pytest.mark.parametrize("silos", [1, 2, 4, 7, 9, 16, 100])
def test_rounds_are_reduced_by_the_root_of_s_as_published_or_by_s(silos):
    """R/√s (Theorem 3.13) and R/s, rounded down; never less than one round."""
    for planned in (1, 2, 16, 64, 99, 100, 200, 1000):
        published = Reduction.PUBLISHED.rounds(planned, silos_per_round=silos)
        linear = Reduction.LINEAR.rounds(planned, silos_per_round=silos)
        assert published == max(1, math.floor(planned / math.sqrt(silos)))
        assert linear == max(1, math.floor(planned / silos))
        if linear > 1:  # what the noise was calibrated for: the steps of R rounds of one silo
            assert silos * linear <= planned


def test_the_papers_own_rounds_are_those_of_its_reduction_and_not_of_the_linear_one():
    """Marathe et al. 2023, Figure 1: 25 rounds of 100 on FEMNIST, 50 of 200 on Shakespeare."""
    for planned, printed in ((100, 25), (200, 50)):
        assert Reduction.PUBLISHED.rounds(planned, silos_per_round=16) == printed
        assert Reduction.LINEAR.rounds(planned, silos_per_round=16) != printed


def test_broken_twin_the_published_reduction_composes_to_more_steps_than_were_paid_for():
    """s silos of R/√s rounds take √s times the R rounds for which the noise was calibrated."""
    rounds = Reduction.PUBLISHED.rounds(100, silos_per_round=16)
    assert 16 * rounds == 4 * 100
