"""A page is there whole, or the old one still is."""

from __future__ import annotations

from pathlib import Path

from userdp.errors import FailureError, UseError
from userdp.files import OPERATOR_FILE, SHAREABLE_FILE, write_file


def require_page_place(path: Path, *, flag: str = "--out", name: str = "report.html") -> Path:
    """``path`` if a page may be written there, else `UseError`; nothing is written.

    Args:
        path: a file, there already or not.
        flag: the option that gave it, and ``name`` a good name for it; for the hint.
        name: see ``flag``.
    """
    if path.is_dir():
        raise UseError(f"{path} is a folder, and a report is a file", hint=f"{flag} {path}/{name}")
    if not path.parent.is_dir():
        raise UseError(f"there is no folder {path.parent} to put the report in")
    return path


def write_page(path: Path, text: str, *, private: bool) -> None:
    """Write a page atomically; ``private`` pages are readable by their owner alone.

    Raises:
        FailureError: the disk refused; what was there before is unchanged.
    """
    try:
        write_file(path, text.encode(), mode=OPERATOR_FILE if private else SHAREABLE_FILE)
    except OSError as error:
        raise FailureError(
            f"cannot write the report {path}: {error.strerror}; what was there is unchanged",
            hint="free some space, or choose another place with --out",
        ) from error
