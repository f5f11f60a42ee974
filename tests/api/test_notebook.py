"""The notebook of the documentation runs."""

from pathlib import Path

import pytest

TOUR = Path(__file__).parents[2] / "docs" / "notebooks" / "tour.ipynb"


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
    said = "".join(out["text"] for out in shown if out.output_type == "stream")
    assert "train: 100%" in said
    assert "ε ≤" in said
