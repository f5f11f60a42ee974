"""Errors of other people's code that quote what they were handed, and places where they arise."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import duckdb
import pyarrow as pa

from tests.secrets.planted import PEOPLE

ID, TEXT = PEOPLE[17].id, PEOPLE[17].texts[0]


class LibraryError(Exception):
    """Of no class that Python knows."""


def _noted() -> Exception:
    error = ValueError("it failed")
    error.add_note(f"while reading {TEXT}")
    return error


def _caused() -> Exception:
    error = RuntimeError("it failed")
    error.__cause__ = KeyError(ID)
    return error


def _within() -> Exception:
    error = RuntimeError("it failed")
    error.__context__ = ValueError(f"cannot read {TEXT}")
    return error


ERRORS: dict[str, Callable[[], Exception]] = {
    "a value": lambda: ValueError(f"cannot read {TEXT!r}"),
    "a key that is an id": lambda: KeyError(ID),
    "bytes that are no UTF-8": lambda: UnicodeDecodeError("utf-8", TEXT.encode(), 3, 4, "bad"),
    "a line that is no JSON": lambda: json.JSONDecodeError(f"bad value in {TEXT}", TEXT, 3),
    "a database": lambda: duckdb.ConversionException(f"Could not convert '{TEXT}' to INT32"),
    "a table": lambda: pa.ArrowInvalid(f"Could not convert '{TEXT}' with type str"),
    "a table's type": lambda: pa.ArrowTypeError(f"Expected bytes, got {TEXT!r}"),
    "a type": lambda: TypeError(f"not for {TEXT!r}"),
    "an import": lambda: ImportError(f"no module {TEXT}"),
    "a missing attribute": lambda: AttributeError(f"no attribute {TEXT}", name=TEXT, obj=TEXT),
    "assertion": lambda: AssertionError(TEXT),
    "a system error without a number": lambda: OSError(f"cannot map {TEXT}"),
    "several": lambda: ExceptionGroup("some", [ValueError(TEXT), KeyError(ID)]),
    "a note": _noted,
    "a cause": _caused,
    "a context": _within,
    "a class of a library": lambda: LibraryError(TEXT),
}
"""What is raised, by what it tells of."""


def raising(name: str, original: Callable[..., object] | None = None) -> Callable[..., object]:
    """A function that takes anything, and raises.

    Args:
        name: of the error.
        original: what does its work on made-up rows: an error there could quote nobody, and is
            told in its own words.
    """

    def fail(*arguments: object, **options: object) -> object:
        if original is not None and on_made_up_rows():
            return original(*arguments, **options)
        raise ERRORS[name]()

    return fail


def on_made_up_rows() -> bool:
    """Whether it is asked before the charge, on rows that are nobody's."""
    asked = {"require_fit_for_steps", "require_right_here"}
    return any(frame.f_code.co_name in asked for frame, _ in traceback.walk_stack(None))
