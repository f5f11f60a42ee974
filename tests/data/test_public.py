"""What a package shows can be used, and importing it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import userdp.data


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = userdp.data.nothing


def test_importing_the_package_imports_no_arrow():
    code = "import sys, userdp.data; assert not {'pyarrow', 'numpy', 'duckdb'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
