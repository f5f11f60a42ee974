"""Training needs torch, transformers, numpy, scipy, pyarrow and what these need: nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSENT = ["duckdb", "dp_accounting", "matplotlib", "opacus", "peft"]
BLOCK = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # None: importing it raises ImportError
sys.path.insert(0, {str(ROOT)!r})
"""


def imports(what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + what]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["userdp.training.loop", "benchmarks.gpu.__main__"])
def test_training_imports_without_the_packages_that_only_other_parts_need(module):
    done = imports(f"import {module}")
    assert done.returncode == 0, done.stderr


def test_twin_a_blocked_package_is_noticed():
    assert imports("import duckdb").returncode != 0
