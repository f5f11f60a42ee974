"""One sheet of A4 about one run: what a reviewer signs, or hands to whoever will not read on."""

from __future__ import annotations

from typing import Any

from userdp.claims.claims import why_nothing
from userdp.claims.parts import ConditionKind
from userdp.reporting.about import About
from userdp.reporting.assumptions import Grade, assumptions_of
from userdp.reporting.curves import draw
from userdp.reporting.detection import detection_plot
from userdp.reporting.holders import delta_facts
from userdp.reporting.meaning import FALSE_ALARMS
from userdp.reporting.numbers import in_powers
from userdp.reporting.rendering import environment
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.store_total import StoreTotal
from userdp.reporting.words import guess_in_words, words_of
from userdp.version import __version__

SUMMARY = "summary.html.j2"


def render_summary(
    run: RunFacts, *, about: About | None = None, store: StoreTotal | None = None
) -> str:
    """The sheet as HTML, which a browser prints on one page.

    Guarantee: it is public, as `userdp.reporting.html.render_report` without an operator's part is:
    a function of these arguments only.

    Args:
        run: as `read_run` gives it.
        about: what the operator says of the release and the data.
        store: what was charged on all people of the store.

    Raises:
        FailureError: two accountants contradict each other about the claim.
    """
    return environment().get_template(SUMMARY).render(**_facts(run, about or About(), store))


def _facts(run: RunFacts, about: About, store: StoreTotal | None) -> dict[str, Any]:
    from markupsafe import Markup

    plot = detection_plot([run])
    # The claim's conditions stand in full beneath it.
    assumptions = [one for one in assumptions_of([run]) if one.key not in list(ConditionKind)]
    return {
        "row": words_of(run),
        "why": "" if run.private else why_nothing(run.claim),
        "guess": guess_in_words(str(run.guarantee.unit), run.guarantee.adjacency),
        "false_alarms": f"{FALSE_ALARMS:.0%}",
        "about": about,
        "store": None if store is None else in_powers(store.claim.headline),
        "delta": delta_facts(run),
        "figure": None if plot is None else Markup(draw(plot)),
        "critical": [one.title for one in assumptions if one.grade is Grade.CRITICAL],
        "others": sum(one.grade is not Grade.CRITICAL for one in assumptions),
        "version": __version__,
    }
