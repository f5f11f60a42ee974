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
from userdp.training.causal_models import read_model

SOURCE = Path(userdp.__file__).parent
NEVER = {
    "pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml", "jsonpickle",
}  # fmt: skip
"""Modules whose readers run what a file says."""
NEEDED = [
    ("torch.load", "weights_only", "True"),
    ("np.load", "allow_pickle", "False"),
    ("numpy.load", "allow_pickle", "False"),
    ("AutoConfig.from_pretrained", "trust_remote_code", "False"),
    ("ForCausalLM.from_pretrained", "trust_remote_code", "False"),
    ("ForCausalLM.from_pretrained", "use_safetensors", "True"),
]
"""Ends of a function's name, and the argument that it must be given."""
CALLS = {"eval", "exec", "pandas.read_pickle", "pd.read_pickle"}


def modules() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text("utf-8"))


def test_no_module_runs_code_of_a_file_and_arrays_and_models_are_read_without():
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                told = {one.name for one in node.names} | {getattr(node, "module", None)}
                # `import pickle` alone names an error of torch's; none of its functions is called.
                known = {"pickle"} if isinstance(node, ast.Import) else set()
                assert not told & NEVER - known, f"{name} imports {told & NEVER}"
            if not isinstance(node, ast.Call):
                continue
            function = ast.unparse(node.func)
            assert function not in CALLS, f"{name}: {ast.unparse(node)}"
            assert not function.startswith("pickle."), f"{name}: {ast.unparse(node)}"
            options = {one.arg: ast.unparse(one.value) for one in node.keywords}
            for ending, option, value in NEEDED:
                if function.endswith(ending):
                    assert options.get(option) == value, f"{name}: {ast.unparse(node)}"


def test_a_folder_with_code_of_its_own_is_refused_without_a_question(tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
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
