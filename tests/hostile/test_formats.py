"""No module reads a format that can run code, and what others wrote is read by one reader."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import userdp
from tests.data.sources.fixtures import read, write_repository
from userdp.core.errors import UseError
from userdp.training.models import read_model

SOURCE = Path(userdp.__file__).parent
NEVER = {
    "pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle",
}  # fmt: skip
"""Modules whose readers run what a file says."""
CALLS = {"eval", "exec", "torch.load", "pandas.read_pickle", "pd.read_pickle"}


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text("utf-8"))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_no_module_imports_or_calls_what_runs_code_of_a_file():
    for name, tree in modules():
        for node in ast.walk(tree):
            names = {one.name for one in getattr(node, "names", ()) if isinstance(one, ast.alias)}
            told = {getattr(node, "module", None), *names} if names else set()
            assert not told & NEVER, f"{name} imports {told & NEVER}"
        for call in calls(tree):
            assert ast.unparse(call.func) not in CALLS, f"{name}: {ast.unparse(call)}"


def test_arrays_are_read_without_pickle_and_models_without_code_of_their_own():
    for name, tree in modules():
        for call in calls(tree):
            options = {one.arg: ast.unparse(one.value) for one in call.keywords}
            function = ast.unparse(call.func)
            if function in ("np.load", "numpy.load"):
                assert options.get("allow_pickle") == "False", name
            if function.endswith(("AutoConfig.from_pretrained", "ForCausalLM.from_pretrained")):
                assert options.get("trust_remote_code") == "False", name
            if function.endswith("ForCausalLM.from_pretrained"):
                assert options.get("use_safetensors") == "True", name


def test_a_folder_with_code_of_its_own_is_refused_without_a_question(tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    config = {"model_type": "evil", "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UseError, match="cannot load a causal language model"):
        read_model(str(tmp_path))
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def trap(tmp_path) -> Path:
    """A repository without its first commit, whose settings say how to fetch what is missing."""
    day = "2020-01-01T00:00:00Z"
    folder = write_repository(
        tmp_path / "repository", [("a@x.org", day, word) for word in ("first", "second")]
    )
    line = ["git", "-C", str(folder), "rev-parse", "HEAD~1"]
    first = subprocess.check_output(line, text=True).strip()
    (folder / ".git" / "objects" / first[:2] / first[2:]).unlink()
    with (folder / ".git" / "config").open("a") as file:
        file.write(
            '[remote "origin"]\n\turl = ssh://x/y\n\tpromisor = true\n'
            "\tpartialclonefilter = blob:none\n[extensions]\n\tpartialClone = origin\n"
            f"[core]\n\trepositoryformatversion = 1\n\tsshCommand = touch {tmp_path / 'ran'};\n"
        )
    return folder


def test_a_repositorys_settings_start_no_program(trap, tmp_path):
    with pytest.raises(UseError, match="git cannot read the history"):
        read(trap, kind="git")
    assert not (tmp_path / "ran").exists()
