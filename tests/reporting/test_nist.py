"""The mapping to NIST SP 800-226: every answer is somewhere, and page and docs say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, examples_plan
from tests.reporting.test_html import Outline
from userdp.reporting.assumptions import _texts
from userdp.reporting.html import SECTIONS, render_report
from userdp.reporting.nist import Answer, topics
from userdp.reporting.run_facts import read_runs
from userdp.sampling import FixedSizeUsers

DOCS = Path(__file__).parents[2] / "docs" / "nist.md"


@pytest.mark.parametrize("topic", topics(), ids=lambda topic: topic.hazard[:30])
def test_each_topic_is_answered_by_something_that_exists(topic) -> None:
    known = _texts().keys() | {one.key for one in FixedSizeUsers.words.assumes}
    assert set(topic.assumptions) <= known
    assert set(topic.sections) <= SECTIONS.keys()
    if topic.answer is Answer.REPORT:
        assert topic.sections
    if topic.answer is Answer.ASSUMPTION:
        assert topic.assumptions


def test_the_docs_say_what_the_page_says() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", DOCS.read_text("utf-8"), re.M)
    told = {hazard: (block, answer, words) for block, hazard, answer, words in rows}
    for topic in topics():
        block, answer, words = told.pop(topic.hazard)
        assert (block, answer) == (topic.block, topic.answer)
        assert words.startswith(topic.words)
        for key in topic.assumptions:
            assert key.replace("-", " ") in words
    assert set(told) == {"hazard"}


def test_the_page_links_only_to_what_it_has(make_run: MakeRun) -> None:
    for runs in ([make_run("a")], [make_run("b"), make_run("c", examples_plan())],
                 [make_run("d", private=False)]):  # fmt: skip
        page = render_report(read_runs(runs))
        outline = Outline(page)
        assert {link[1:] for link in outline.links} <= set(outline.ids)
        for topic in topics():
            assert topic.hazard.split(":")[0] in page
