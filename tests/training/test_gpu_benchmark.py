"""`make gpu` on a CPU and tiny models: every part runs, and a second call does what is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--tiny", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def test_every_part_runs_and_a_second_call_does_only_what_is_left(tmp_path):
    out = tmp_path / "gpu.json"
    done = run(out)
    assert done.returncode == 0, done.stderr
    parts = json.loads(out.read_text())["parts"]
    kinds = {name.split("_")[0] for name in parts}
    assert kinds == {"exact", "decoder", "lora", "sharded", "noise"}
    assert [name for name, part in parts.items() if "error" in part] == []
    engines = {row["engine"] for row in parts["exact_float32"]["rows"]}
    assert engines == {"auto", "bookkeeping", "lora", "reference", "vmap"}
    assert "| decoder_g16 | bfloat16 | 16 | auto |" in out.with_suffix(".md").read_text()

    document = json.loads(out.read_text())
    document["parts"]["noise"] = {"error": "was cut off"}
    document["parts"]["decoder_g1"]["mark"] = "kept"
    out.write_text(json.dumps(document))
    assert run(out).stdout.startswith("noise")
    again = json.loads(out.read_text())["parts"]
    assert "error" not in again["noise"]
    assert again["decoder_g1"]["mark"] == "kept"


def test_without_time_each_part_says_that_it_is_left(tmp_path):
    out = tmp_path / "gpu.json"
    assert run(out, "--seconds", "-1").returncode == 0
    assert all("no time left" in p["error"] for p in json.loads(out.read_text())["parts"].values())
