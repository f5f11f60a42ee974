"""What `userdp.data` shows can be used, and importing it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import userdp.data


@pytest.mark.parametrize("name", userdp.data.__all__)
def test_each_public_name_is_there(name):
    assert getattr(userdp.data, name).__name__ == name


def test_the_list_of_names_and_the_files_that_define_them_agree():
    held = [name for names in userdp.data._MODULES.values() for name in names]
    assert sorted(held) == sorted(userdp.data.__all__)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = userdp.data.nothing


def test_importing_the_package_imports_no_arrow():
    code = "import sys, userdp.data; assert not {'pyarrow', 'numpy', 'duckdb'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
