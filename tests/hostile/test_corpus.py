"""Every damaged or odd file that broke a reader once ends in a right result or one clear error.

::

    tests/hostile/corpus/READER/NAME/case.toml    what happened before it was mended
    tests/hostile/corpus/READER/NAME/FILE         the file as it was, in its place
"""

from __future__ import annotations

import signal
import tomllib
from pathlib import Path

import pytest

from tests.hostile.readers import READERS, Reader
from userdp.core.errors import UserdpError

CORPUS = Path(__file__).parent / "corpus"
CASES = sorted(path.parent for path in CORPUS.glob("*/*/case.toml"))
_SECONDS = 10
"""Of processor time: no case is larger than some 100 kB, and most take milliseconds."""


def read_with(reader: Reader, folder: Path, case: Path | None = None) -> None:
    """Read a folder in which one file is that of the case; what is refused is refused clearly."""
    place = folder / "case"
    for made in (place, folder / "out"):
        made.mkdir()
    reader.make(place)
    if case is not None:
        (file,) = (p for p in case.rglob("*") if p.is_file() and p.name != "case.toml")
        name = file.relative_to(case).as_posix()
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(file.read_bytes())
        reader.mend(place, name)
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    try:
        reader.read(place)
    except UserdpError as error:
        text = str(error)
        assert text.strip()
        assert len(text) <= 4000
        assert all(one.isprintable() or one in "\n\t" for one in text)
        if case is None:
            raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_a_file_that_broke_a_reader_is_right_or_refused_in_one_clear_error(
    case: Path, tmp_path: Path
) -> None:
    assert tomllib.loads((case / "case.toml").read_text("utf-8"))["what"]
    read_with(READERS[case.parent.name], tmp_path, case)


@pytest.mark.parametrize("name", sorted(READERS))
def test_what_is_not_changed_is_read(name: str, tmp_path: Path) -> None:
    read_with(READERS[name], tmp_path)
