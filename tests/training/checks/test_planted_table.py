"""The page on the selftest lists every fault that is planted, by the invariant that sees it."""

from pathlib import Path

from tests.training.checks import test_planted_faults, test_processes

PAGE = Path(__file__).parents[3] / "docs" / "results" / "selftest.md"


def table() -> str:
    """What the page shows: of one process by the names of the tests, of two by their cases."""
    tests = test_planted_faults.PLANTED
    found = [tests.fullmatch(name) for name in vars(test_planted_faults)]
    alone = [(int(one[1]), one[2].replace("_", " "), "one") for one in found if one is not None]
    two = [(number, fault, "two") for fault, _, number, _ in test_processes.CAUGHT]
    faults = sorted({*alone, *two})
    assert len(alone) + len(two) == len(faults)
    rows = [f"| {fault} | {processes} | {number} |" for number, fault, processes in faults]
    return "\n".join(["| fault | processes | invariant |", "|---|---|---|", *rows])


def test_the_page_shows_every_planted_fault():
    assert table() in PAGE.read_text(encoding="utf-8"), table()


def test_they_are_a_dozen_and_more_of_each_invariant_that_is_checked():
    assert table().count("\n") - 1 >= 12
    assert {row.rsplit("| ", 1)[1].split()[0] for row in table().splitlines()[2:]} == {
        "2", "3", "5", "6", "14",
    }  # fmt: skip
