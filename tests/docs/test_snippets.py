"""Every block of README and docs is run, in its page's order, or says in the page why it is not.

`pages.SMALLER` and `pages.ADDED` are all that is exchanged in them.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.data import write_all, write_llama
from tests.docs.pages import Block, blocks
from tests.docs.runner import PageRunner

ALL = [block for page in pages.pages() for block in blocks(page)]
RUNNING = sorted({block.page for block in ALL if block.runs})

PREPARE = ["userdp prepare mail.jsonl --user sender --text body --out store"]
TRAIN = [
    *PREPARE,
    "userdp train store --out run --population 200 --cohort-size 40 "
    "--group-size 2 --steps 3 --l2-clip-norm 0.5 --epsilon 4 --delta 1e-5 --learning-rate 0.003",
    "cp run/plan.json plan.json",
]
BEFORE = {
    "docs/audit.md": TRAIN,
    "docs/budgets.md": PREPARE,
    "docs/claim.md": [*TRAIN, "rm -r run store", *PREPARE],
    "docs/engines.md": [*TRAIN, "rm -r run"],
    "docs/extending/loss.md": [*TRAIN, "cp $DOCS/examples/extending/own_loss.py ."],
    "docs/extending/models.md": [
        *TRAIN,
        "rm -r run store",
        "cp $DOCS/examples/extending/vision_model.py .",
    ],
    "docs/export.md": TRAIN,
    "docs/how-to/audit.md": TRAIN,
    "docs/how-to/command-line.md": [
        r"printf '[train]\nepsilon = 4\npopulation = 200\nsteps = 5\n"
        r"[train.learning]\nweight_decay = 0.1\n' > userdp.toml"
    ],
    "docs/how-to/report.md": TRAIN,
    "docs/how-to/reviewer.md": TRAIN,
    "docs/loop.md": [*TRAIN, "rm -r run"],
    "docs/planning.md": PREPARE,
    "docs/report.md": [*TRAIN, "userdp train store --out second --plan plan.json"],
    "docs/tuning.md": [*TRAIN, "rm -r run"],
}
"""What a page finds done, where it does not do it itself: commands, by the page."""


NAMES = {
    "docs/loop.md": """
import transformers, userdp
size = userdp.UserStore.open("store").meta.vocab_size
config = transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=size)
transformers.GPT2LMHeadModel(config).save_pretrained("base-model")
"""
}
"""What a page finds made by Python."""


def test_every_block_names_a_language_that_is_run_or_only_shown():
    known = (*pages.RUN, *pages.SHOWN)
    unknown = [one for one in ALL if one.language not in known and one.language[:1] != "{"]
    assert [f"{one.page}, line {one.line}: {one.language!r}" for one in unknown] == []


def test_blocks_that_are_not_run_say_why_in_the_page():
    reasons = {block.reason for block in ALL if block.language in pages.RUN and block.reason}
    assert all(len(reason) > 10 for reason in reasons), reasons
    shown = [block for block in ALL if block.reason and block.language not in pages.RUN]
    assert shown == [], "a reason above a block that nobody would run"


def test_everything_that_is_exchanged_stands_in_some_page():
    for large in pages.SMALLER:
        texts = [block.text for block in ALL if large in block.text]
        assert any(pages.smaller(text) != text for text in texts), large


def test_links_of_readme_lead_to_files():
    for page in ("README.md", "CONTRIBUTING.md"):
        text = (pages.ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in target:
                assert (pages.ROOT / target).exists(), f"{page}: {target}"


QUICK = {"docs/concepts/composition.md", "docs/concepts/privacy-unit.md"}


@pytest.mark.parametrize(
    "page",
    [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in RUNNING],
)
def test_every_block_of_the_page_runs(page, tmp_path, monkeypatch):
    if "spark" in page and not (shutil.which("java") and find_spec("pyspark")):
        pytest.skip("Spark needs Java and the extra spark")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_all(Path())
    if page in ("docs/how-to/lora.md", "docs/engines.md"):
        write_llama(Path("llama"))
    runner = PageRunner(tmp_path)
    for command in BEFORE.get(page, ()):
        runner.run(Block(page="before " + page, line=0, language="console", text=command))
    if page in NAMES:
        runner.run(Block(page="before " + page, line=0, language="python", text=NAMES[page]))
    for block in blocks(page):
        if block.runs:
            runner.run(block)


def test_the_lives_that_the_page_of_budgets_tells_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    page = list(blocks("docs/budgets.md"))
    lives = [number for number, block in enumerate(page) if block.language == "python"]
    assert len(lives) == 2
    for number in lives:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(page[number].text, names)
        shown = page[number + 1]
        assert shown.language == "text"
        assert said.getvalue() == shown.text
