"""Neither δ nor ε is ever printed rounded down: functions of `vocabulary` write them, nothing else.

Designs of studies (`papers`) write the round ε that they fix, and audits what they proved at
least, which is no bound that anybody is promised.
"""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

import userdp
from userdp.cli.output import in_words
from userdp.core.vocabulary import Adjacency, Guarantee, PrivacyUnit, delta_up, epsilon_up, round_up
from userdp.reporting.rendering import delta_text

SOURCE = Path(userdp.__file__).parent
AWKWARD = 1.00000049e-6  # to six digits, the nearest is 1e-06, which is less
FORMATTED = re.compile(
    r"[δε]\W*\{[^{}]+:[^{}\s]+\}"  # f"ε = {value:.4g}"
    r"|\{(?![\"'])[^{}]*(?:delta|epsilon)[^{}]*:[^{}\s]+\}"  # f"{claim.epsilon:.3f}"; no dict
    r"|\b(?:round|format)\([^()]*(?:delta|epsilon)[^()]*\)"
)
AT_LEAST = re.compile("epsilon_lower|detectable_epsilon|power")


def formatted(source: str) -> list[str]:
    """What ``source`` formats or rounds that is a δ or an ε, by its name or the sign before it."""
    return [one for one in FORMATTED.findall(source) if not AT_LEAST.search(one)]


@given(st.floats(0, 1e308), st.integers(1, 17))
@example(AWKWARD, 6)
@example(5e-324, 6)
@example(0.99999999, 3)
@example(1e-5, 6)
def test_a_printed_delta_is_never_below_the_delta(delta: float, digits: int) -> None:
    text = delta_up(delta, digits)
    assert float(text) >= delta
    if delta > 1e-300:
        assert float(text) <= delta * (1 + 1.0001 * 10.0 ** (1 - digits))


def test_a_short_delta_is_printed_as_it_was_written_and_a_headline_rounds_up() -> None:
    short = {1e-6: "1e-06", 1e-5: "1e-05", 0.0: "0", 1.13e-9: "1.13e-09", 0.05: "0.05"}
    assert {delta: delta_up(delta) for delta in short} == short
    claim = Guarantee(
        epsilon=2.0, delta=AWKWARD, unit=PrivacyUnit.USER, adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="users", accountant="contour",
    )  # fmt: skip
    assert "1.00001e-06)-DP per user" in str(claim)
    assert float(f"{AWKWARD:g}") < AWKWARD, "the twin: the nearest six digits are below it"


def test_tables_with_one_formatter_for_all_numbers_round_delta_up() -> None:
    told = in_words({"epsilon": 1.0, "delta": 1.0000000049e-6}, "account")
    assert "1.00001e-06" in "".join(told)
    assert delta_text(AWKWARD, 6) == "1.00001e-6"


def test_nothing_else_in_the_package_formats_a_delta_or_an_epsilon() -> None:
    """`delta_up`; `round_up` where an ε was computed, `epsilon_up` where somebody wrote it."""
    found = {file.name: formatted(file.read_text()) for file in SOURCE.rglob("*.py")}
    assert not {name: told for name, told in found.items() if told}


@given(st.floats(0, 1e308))
@example(0.12345649)
@example(float("inf"))
def test_a_printed_epsilon_is_never_below_the_epsilon(epsilon: float) -> None:
    assert float(epsilon_up(epsilon)) >= epsilon
    assert float(round_up(epsilon)) >= epsilon


def test_no_template_formats_a_delta() -> None:
    templates = sorted(SOURCE.rglob("*.j2"))
    assert templates
    for template in templates:
        for inserted in re.findall(r"{{(.*?)}}", template.read_text()):
            assert "delta" not in inserted or "|" not in inserted, f"{template.name}: {inserted}"


def test_broken_twins_another_formatting_is_found() -> None:
    assert float(f"{0.12345649:g}") < 0.12345649
    for source in (
        'f"{epsilon:g}"', 'f"{loss.epsilon:.3f}"', 'f"ε = {value:.4g}"', 'f"{delta:g}"',
        'f"{told[\'delta\']:g}"',
        'f"δ = {value:g}"', "round(delta, 6)", 'format(delta, "g")',
    ):  # fmt: skip
        assert formatted(source), source
    for source in (
        'f"{epsilon_up(epsilon)}"', 'f"{audit.epsilon_lower:.4g}"', 'f"{epsilon}"',
        'f"{delta_up(delta)}"', 'f"{delta!r}"', '{"delta": delta}', "{delta: 1}",
    ):  # fmt: skip
        assert not formatted(source), source
