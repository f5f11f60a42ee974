"""Docstrings: parsed, never imported; one user per module."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial

import pytest

from tests.data.sources import fixtures
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.records import Drop, Tally
from userdp.data.sources import open_source

PACKAGE = {
    "__init__.py": '"""The package."""\nraise SystemExit("imported!")\n',
    "deep/__init__.py": "",
    "deep/code.py": '''"""The module."""

class Thing:
    """  A thing.

      Indented.
    """

    async def method(self):
        "Inside."

if True:
    def late(): """Under a condition."""

def copied(): """Return self."""

def bare(): return """not a docstring"""
''',
    "long_chain.py": "if 0: pass\n" + "elif 0: pass\n" * 2000,
    "empty.py": '"""   """\n',
    "broken.py": '"""Not read."""\ndef (:\n',
    "latin.py": b'# -*- coding: latin-1 -*-\n"""caf\xe9"""\n',
    "_vendor/copied.py": '"""A copy."""',
    "extern/copied.py": '"""A copy."""',
    "again.py": 'def one(): """Return self."""\ndef two(): """Return self."""\n',
    "tests/test_it.py": '"""A test."""',
    "conftest.py": '"""A test."""',
    "with-dash.py": '"""A script."""',
}


@pytest.fixture
def package(tmp_path, monkeypatch) -> str:
    for name, content in PACKAGE.items():
        path = tmp_path / "userdp_example_pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    told = tmp_path / "userdp_example_pkg-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: userdp-example-pkg\nVersion: 1.0\n"
    )
    (told / "RECORD").write_text("".join(f"userdp_example_pkg/{name},,\n" for name in PACKAGE))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "userdp_example_pkg"


read = partial(fixtures.read, kind="docstrings")


def test_modules_classes_and_functions_are_read_and_a_text_stays_in_its_first_module(package):
    records, tally = read(package)
    texts: dict[str, list[str]] = {}
    for record in sorted(records):
        texts.setdefault(record.user.decode(), []).append(record.text.decode())
    for mine in texts.values():
        mine.sort()
    assert texts == {
        package: ["The package."],
        f"{package}.deep.code": sorted(
            ["The module.", "A thing.\n\nIndented.", "Inside.", "Under a condition."]
        ),
        f"{package}.latin": ["café"],
        f"{package}.again": ["Return self.", "Return self."],
    }  # fmt: skip
    dropped = Drop.UNREADABLE_MODULE, Drop.EMPTY_TEXT, Drop.REPEATED
    assert tally.drops == dict.fromkeys(map(str, dropped), 1)
    assert tally.records_read == len(records) + 3
    assert package not in sys.modules
    assert open_source([package], kind="docstrings").facts == {"packages": {package: "1.0"}}


def test_the_standard_library_has_the_topics_of_pydoc():
    source = open_source(["stdlib"], kind="docstrings")
    (files,) = source.places
    assert not any("test" in module.split(".") for module in files)
    assert {"json.decoder", "pydoc_data.topics", "asyncio.tasks"} <= set(files)
    only = {"pydoc_data.topics": files["pydoc_data.topics"]}
    topics = list(replace(source, places=(only,)).records(Tally(), Progress()))
    assert len(topics) > 50
    assert any(b"assert" in record.text for record in topics)


@pytest.mark.parametrize("name", ["no-such-package-here", "", "../etc", "sys"])
def test_a_package_that_is_not_installed_is_refused(name):
    with pytest.raises(UseError, match="no installed package"):
        read(name)
