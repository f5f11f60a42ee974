"""What only the operator of a run has: its log, its audit, and how it goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import ClassVar

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import CORPUS, chain
from benchmarks.faults.hostile.targets.prices import remember_prices

_LOG = (
    {
        "kind": "machine",
        "device": "cpu",
        "cores": 2,
        "threads": 1,
        "torch": "2.11",
        "python": "3.11",
    },
    {"kind": "step", "step": 1, "loss": 3.5, "seconds": 0.5, "units": 4, "clipped_fraction": 0.5},
    {"kind": "evaluation", "step": 1, "split": "held-out-users", "loss": 3.5, "user_loss": 3.25},
    {"kind": "final evaluation", "of": "base", "split": "held-out-users", "loss": 3.5},
    {"kind": "final evaluation", "of": "model", "split": "held-out-users", "loss": 3.0},
)
_ROC = {"auc": 0.5, "auc_low": 0.4, "auc_high": 0.6, "tpr_at_low_fpr": 0.01, "low_fpr": 0.01}
_BOUND = {"epsilon_lower": 0.5, "confidence": 0.95, "most_detectable": 3.0}
_AUDIT = {
    "extra_run": {"bound": _BOUND, "steps": _BOUND},
    "flagged": ["nothing"],
    "inference": _ROC,
    "references": {**_ROC, "runs": 4},
}


class Operator(Target):
    """A report of a run, for its operator."""

    name = "operator"
    what = "operator.jsonl, audit.json, train.toml: the operator's report"

    def make(self, folder: Path) -> None:
        remember_prices()
        for name in ("ledger.jsonl", "plan.json", "train.toml"):
            shutil.copyfile(CORPUS / "run" / name, folder / name)
        text = "".join(json.dumps(line) + "\n" for line in _LOG)
        (folder / "operator.jsonl").write_text(text)
        (folder / "audit").mkdir()
        (folder / "audit" / "audit.json").write_text(json.dumps(_AUDIT))

    def files(self, folder: Path) -> list[str]:
        return ["audit/audit.json", "operator.jsonl", "train.toml"]

    def read(self, folder: Path) -> None:
        from userdp.commands.report import report
        from userdp.reporting.operator_facts import read_operator

        read_operator(folder)
        out = folder.with_name("out") / "report.html"
        report([folder], out=out)
        page = out.read_text("utf-8")
        assert "<script>x" not in page, "a word of a file is run by whoever reads the page"


class Settle(Target):
    """An interrupted run that is settled: resume.json, its ledger, the store that it names."""

    name = "settle"
    what = "resume.json and the ledger (chained anew) of an interrupted run that is settled"
    follows_paths: ClassVar[bool] = True  # resume.json names the store

    def make(self, folder: Path) -> None:
        remember_prices()
        run, store = folder / "run", folder / "store"
        shutil.copytree(CORPUS / "store", store)
        run.mkdir()
        for name in ("ledger.jsonl", "plan.json"):
            shutil.copyfile(CORPUS / "unfinished" / name, run / name)
        lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
        nonces = [line["nonce"] for line in lines if line["kind"] == "open"]
        values = {
            "run_id": lines[0]["run_id"], "nonces": nonces, "charge": lines[0]["run_id"],
            "digests": {"store": "00", "plan": "00"}, "store_path": "STORE", "state": "",
        }  # fmt: skip
        (run / "resume.json").write_text(json.dumps(values))

    def files(self, folder: Path) -> list[str]:
        return ["run/ledger.jsonl", "run/resume.json"]

    def mend(self, folder: Path, file: str) -> None:
        if file.endswith("ledger.jsonl"):
            chain(folder / file)

    def read(self, folder: Path) -> None:
        from userdp.ledger.ending import end_early
        from userdp.ledger.folder import RunFolder

        resume = folder / "run" / "resume.json"
        resume.write_bytes(resume.read_bytes().replace(b"STORE", str(folder / "store").encode()))
        end_early(RunFolder(folder / "run"))


TARGETS: tuple[type[Target], ...] = (Operator, Settle)
