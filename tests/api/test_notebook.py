"""What a notebook shows of a claim and a proposal."""

from html.parser import HTMLParser

import pytest

from tests.plans import uls_plan
from tests.plans_room.conftest import request
from userdp.claims import Claim
from userdp.claims.lineage import of_parts
from userdp.claims.parts import Query, Steps
from userdp.core.vocabulary import round_up
from userdp.notebook import html_of
from userdp.plans.planner import propose

PLAN = uls_plan()
CLAIM = Claim(
    guarantee=PLAN.guarantee(),
    lineage=of_parts([Steps(id="a", plan=PLAN), Query(id="b", name="users", pure_epsilon=0.5)]),
    subject="run",
    steps=PLAN.steps,
    complete=True,
)


class Balanced(HTMLParser):
    """Fails where a tag is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


PROPOSAL = propose(request())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (CLAIM, round_up(CLAIM.guarantee.epsilon)),
        (PROPOSAL, PROPOSAL.reason),
    ],
    ids=["claim", "proposal"],
)
def test_it_is_a_table_that_says_what_matters(value, told):
    page = Balanced()
    page.feed(value._repr_html_())
    assert page.open == []
    assert any(told in words for words in page.words)


def test_what_is_shown_is_escaped():
    page = html_of("<script>", [("<b>", "&")], columns=("<i>", "x"), below=("<u>",))
    for tag in ("<script>", "<b></", "<i>", "<u>"):
        assert tag not in page
