"""What a notebook shows of a claim and a proposal; and the notebook of the documentation runs."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.plans_room.conftest import request
from tests.reporting.conftest import run_maker
from userdp.claims import claim
from userdp.core.vocabulary import round_up
from userdp.notebook import html_of
from userdp.plans.planner import propose

TOUR = Path(__file__).parents[2] / "docs" / "notebooks" / "tour.ipynb"


def made_claim(folder):
    made = claim(run_maker(folder)())
    return made, round_up(made.guarantee.epsilon)


def made_proposal(folder):
    proposal = propose(request())
    return proposal, proposal.reason


@pytest.mark.parametrize("make", [made_claim, made_proposal])
def test_it_is_a_table_that_says_what_matters(make, tmp_path):
    value, told = make(tmp_path)
    page = ElementTree.fromstring(f"<div>{value._repr_html_()}</div>")  # each tag is closed
    assert page.findall(".//table")
    assert told in "".join(page.itertext())


def test_what_is_shown_is_escaped():
    page = html_of("<script>", ("<i>", "x"), [("<b>", "&")], notes=("<u>",))
    for tag in ("<script>", "<b></", "<i>", "<u>"):
        assert tag not in page


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    options = {"timeout": 600, "resources": {"metadata": {"path": str(tmp_path)}}}
    nbclient.NotebookClient(notebook, **options).execute()
    assert (tmp_path / "report.html").exists()
    shown = [out for cell in notebook.cells for out in cell.get("outputs", ())]
    html = "".join(out["data"].get("text/html", "") for out in shown if "data" in out)
    assert "ε ≤" in html
    said = "".join(out["text"] for out in shown if out.output_type == "stream")
    assert "train: 100%" in said
