"""Neither δ nor ε is ever printed rounded down: functions of `vocabulary` write them, nothing else.

Designs of studies (`papers`) write the round ε that they fix, and audits what they proved at
least, which is no bound that anybody is promised.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

import userdp
from userdp.cli.output import in_words, show
from userdp.commands.account import Priced
from userdp.reporting.rendering import delta_text
from userdp.vocabulary import Adjacency, Guarantee, PrivacyUnit, delta_up, epsilon_up, round_up

SOURCE = Path(userdp.__file__).parent
AWKWARD = 1.00000049e-6  # to six digits, the nearest is 1e-06, which is less
AT_LEAST = ("epsilon_lower", "detectable_epsilon", "power")


def rounded_deltas(source: str) -> Iterator[str]:
    return rounded(source, "delta", "δ")


def rounded_epsilons(source: str) -> Iterator[str]:
    for found in rounded(source, "epsilon", "ε"):
        if not any(word in found for word in AT_LEAST):
            yield found


def rounded(source: str, name: str, sign: str) -> Iterator[str]:
    """Formatted values in ``source`` that are one by name or by the words before, with a spec."""
    said = re.compile(rf"({sign}|{name})\W*$")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            before = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    before = str(part.value)
                elif isinstance(part, ast.FormattedValue):
                    meant = name in ast.unparse(part.value).lower() or said.search(before)
                    if meant and part.format_spec is not None:
                        yield f"line {part.lineno}: {ast.unparse(part)}"
                    before = ""
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("round", "format") and name in ast.unparse(node.args[0]).lower():
                yield f"line {node.lineno}: {ast.unparse(node)}"


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


@pytest.mark.parametrize(
    ("delta", "text"),
    [(1e-6, "1e-06"), (1e-5, "1e-05"), (0.0, "0"), (1.13e-9, "1.13e-09"), (0.05, "0.05")],
)
def test_a_short_delta_is_printed_as_it_was_written(delta: float, text: str) -> None:
    assert delta_up(delta) == text


def test_the_headline_rounds_delta_up() -> None:
    claim = Guarantee(
        epsilon=2.0,
        delta=AWKWARD,
        unit=PrivacyUnit.USER,
        adjacency=Adjacency.ADD_OR_REMOVE,
        sampling="users",
        accountant="contour",
    )
    assert "1.00001e-06)-DP per user" in str(claim)


def test_broken_twin_the_nearest_six_digits_are_below_the_delta() -> None:
    assert float(f"{AWKWARD:g}") < AWKWARD


def test_tables_with_one_formatter_for_all_numbers_round_delta_up() -> None:
    out = StringIO()
    priced = Priced(values={"epsilon": 1.0, "delta": 1.0000000049e-6})
    show(in_words(priced, "account", priced.values), console=Console(file=out))
    assert "1.00001e-06" in out.getvalue()
    assert delta_text(AWKWARD, 6) == "1.00001e-6"


def test_nothing_else_in_the_package_formats_a_delta() -> None:
    found = [
        f"{file.relative_to(SOURCE)}, {what}"
        for file in sorted(SOURCE.rglob("*.py"))
        for what in rounded_deltas(file.read_text())
    ]
    assert not found, "use delta_up"


def test_nothing_but_designs_of_studies_formats_an_epsilon() -> None:
    found = [
        f"{file.relative_to(SOURCE)}, {what}"
        for file in sorted(SOURCE.rglob("*.py"))
        if "papers" not in file.relative_to(SOURCE).parts
        for what in rounded_epsilons(file.read_text())
    ]
    assert not found, "use round_up where it was computed, epsilon_up where somebody wrote it"


@given(st.floats(0, 1e308))
@example(0.12345649)
@example(float("inf"))
def test_a_printed_epsilon_is_never_below_the_epsilon(epsilon: float) -> None:
    assert float(epsilon_up(epsilon)) >= epsilon
    assert float(round_up(epsilon)) >= epsilon


def test_broken_twins_another_formatting_of_epsilon_is_found() -> None:
    assert float(f"{0.12345649:g}") < 0.12345649
    for source in ('f"{epsilon:g}"', 'f"{loss.epsilon:.3f}"', 'f"ε = {value:.4g}"'):
        assert list(rounded_epsilons(source))
    for source in ('f"{epsilon_up(epsilon)}"', 'f"{audit.epsilon_lower:.4g}"', 'f"{epsilon}"'):
        assert not list(rounded_epsilons(source))


def test_no_template_formats_a_delta() -> None:
    templates = sorted(SOURCE.rglob("*.j2"))
    assert templates
    for template in templates:
        for inserted in re.findall(r"{{(.*?)}}", template.read_text()):
            assert "delta" not in inserted or "|" not in inserted, f"{template.name}: {inserted}"


@pytest.mark.parametrize(
    "source",
    ['f"{delta:g}"', 'f"{run[\'delta\']:.4g}"', 'f"δ = {value:g}"', "round(delta, 6)",
     'format(target_delta, "g")'],
)  # fmt: skip
def test_broken_twins_another_formatting_of_delta_is_found(source: str) -> None:
    assert list(rounded_deltas(source))


@pytest.mark.parametrize("source", ['f"{delta_up(delta)}"', 'f"{delta!r}"', 'f"{epsilon:g}"'])
def test_what_is_allowed_is_not_found(source: str) -> None:
    assert not list(rounded_deltas(source))
