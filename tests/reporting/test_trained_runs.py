"""A report of real runs: every number of it is recomputed from their files."""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

import pytest

from tests.reporting.conftest import full_page
from userdp.accounting.mechanisms import Mixture, binomial_steps

pytestmark = pytest.mark.slow  # runs are trained

Runs = tuple[Path, ...]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def up(value: float) -> str:
    return str(Decimal(value).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def mechanism(run: Path) -> Mixture:
    """From the lines of the attempts alone, not from the plan: what was drawn, at which noise."""
    head, *rest = lines(run / "ledger.jsonl")
    attempts = [line["step"] for line in rest if line["kind"] == "attempt"]
    (probability,) = {line["sampling"]["sampling_probability"] for line in attempts}
    (noise,) = {line["noise_std"] / line["l2_clip_norm"] for line in attempts}
    by_user = attempts[0]["sampling"]["kind"] == "users"
    return binomial_steps(
        sampling_probability=probability,
        noise_multiplier=noise,
        steps=len(attempts),
        group_size=1 if by_user else head["plan"]["sampling"]["group_size"],
    )


def rows_of(page: str, caption: str) -> dict[str, list[str]]:
    """The cells of the table with this caption, by row name."""
    table = next(t for t in re.findall(r"<table.*?</table>", page, re.S) if caption in t)
    found = {}
    for row in re.findall(r"<tr[^>]*>\s*(<th scope=\"row\">.*?)</tr>", table, re.S):
        name, *cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        found[name] = [re.sub(r"<[^>]+>", "", cell).strip() for cell in cells]
    return found


@pytest.fixture(scope="module")
def page(trained_runs: Runs) -> str:
    return full_page(*trained_runs)


def test_every_epsilon_is_that_of_the_ledgers_lines(trained_runs: Runs, page: str) -> None:
    claims = rows_of(page, "The claim of each run")
    assert list(claims) == [run.name for run in trained_runs]
    total = Decimal(0)
    for run in trained_runs:
        delta = lines(run / "ledger.jsonl")[0]["plan"]["budget"]["target_delta"]
        epsilon = mechanism(run).epsilon(delta).upper
        assert claims[run.name][:4] == [up(epsilon), f"{delta:g}", "user", "add-or-remove"]
        assert f"userdp account --ledger {run.name}\n" in page
        total += Decimal(epsilon)
    assert f'class="number">{up(total)}</strong> at δ' in page


def test_losses_and_cohorts_are_those_of_the_operators_file(trained_runs: Runs, page: str) -> None:
    steps = rows_of(page, "Steps: what was drawn, and what it cost")
    splits = re.findall(r"<tr>\s*<th scope=\"row\">([\w-]+)</th>\s*<td data-label=\"Split\"", page)
    assert len(splits) == 4 * 2
    for run in trained_runs:
        log = lines(run / "operator.jsonl")
        after = [x for x in log if x["kind"] == "final evaluation" and x["of"] == "model"]
        for found in after:
            assert f"{found['loss']:,.4f}" in page
            assert f"{math.exp(found['loss']):,.1f}" in page
        logged = [x for x in log if x["kind"] == "step"]
        drawn = [x["units"] for x in logged]
        mean = sum(drawn) / len(drawn)
        assert f"{min(drawn):,} / {mean:,.1f} / {max(drawn):,}" in steps[run.name]
        assert f"{sum(x['rows'] for x in logged):,}" in steps[run.name]
        assert "torch" in steps[run.name][-1]
