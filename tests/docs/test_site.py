"""The site builds without a warning (a dead link is one), and describes what is public."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import userdp
from userdp.cli.command_line import NAMES, Command

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("furo", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    options = ["-b", "html", "-W", "--keep-going", "-n", "-q", "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")]
    # The notebook is executed by a test of its own, and by `make docs`.
    quick = {**os.environ, "USERDP_DOCS_NOTEBOOKS": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=quick
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "html"


@pytest.mark.slow
def test_each_command_and_each_public_name_is_described(site):
    for name in NAMES:
        page = site / "reference" / "commands" / f"{name.replace(' ', '-')}.html"
        text = page.read_text(encoding="utf-8")
        assert [
            one for one in Command(name).spelled if one.replace("_", "-") not in text.lower()
        ] == []
    text = (site / "reference" / "api" / "userdp.html").read_text(encoding="utf-8")
    public = [name for name in userdp.__all__ if not name.startswith("_")]
    assert [name for name in public if f'id="userdp.{name}"' not in text] == []
