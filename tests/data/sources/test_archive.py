"""A ZIP of text files by folder."""

import zipfile

import pytest

from tests.data.sources.fixtures import pairs, read
from userdp.core.errors import UseError
from userdp.data.records import Drop

FILES = {
    "ben/notes.md": "\ufeffnotes",
    "ana/2024/diary.txt": "Dear diary",
    "ana/2023/diary.TXT": "an older one",
    "ana/.hidden.txt": "not read",
    "__MACOSX/ana/diary.txt": "not read",
    "ana/picture.png": "not read",
    "stray.txt": "nobody's",
}


def test_the_topmost_folder_is_the_user_and_each_document_a_record(tmp_path):
    with zipfile.ZipFile(tmp_path / "texts.zip", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    records, tally = read(tmp_path / "texts.zip")
    assert pairs(records) == [
        ("ana", "an older one"), ("ana", "Dear diary"), ("ben", "notes"),
    ]  # fmt: skip
    assert tally.drops == {Drop.NO_USER: 1}
    (tmp_path / "texts.zip").write_bytes((tmp_path / "texts.zip").read_bytes()[:-40])
    with pytest.raises(UseError, match="cannot be read to its end"):
        read(tmp_path / "texts.zip")
