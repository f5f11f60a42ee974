"""Sweeps and plans, and what they are made from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from benchmarks.faults.hostile.cases import Target
from benchmarks.faults.hostile.targets.ledgers import CORPUS
from benchmarks.faults.hostile.targets.prices import remember_prices


class Plans(Target):
    """Plan files, and the norms that they are made from."""

    name = "plan"
    what = "plans, proposals of `userdp plan`, gradient norms"

    def make(self, folder: Path) -> None:
        remember_prices()
        shutil.copyfile(CORPUS / "run" / "plan.json", folder / "plan.json")
        for name in ("proposal.json", "norms.json"):
            shutil.copyfile(CORPUS / name, folder / name)

    def read(self, folder: Path) -> None:
        from userdp.plans import Plan
        from userdp.plans.norms import GradientNorms
        from userdp.plans.proposal import declared_users

        GradientNorms.load(folder / "norms.json").user_norm(1)
        for name in ("plan.json", "proposal.json"):
            declared_users(folder / name)
            plan = Plan.load(folder / name)
            plan.save(folder.with_name("out") / name)
            assert Plan.load(folder.with_name("out") / name) == plan, "another plan is saved"
            guarantee = plan.guarantee()
            assert guarantee.epsilon >= 0, f"epsilon {guarantee.epsilon}"


class Sweep(Target):
    """The folder of a sweep that goes on."""

    name = "sweep"
    what = "tuning.json and the scores of a tuning"

    def make(self, folder: Path) -> None:
        from tests.claims.lives import PLAN
        from tests.training.toy import CONFIG
        from userdp.data.store import UserStore
        from userdp.sweeping.choice import Score
        from userdp.sweeping.folder import SweepFolder
        from userdp.sweeping.request import TuningMode, build_request, grid

        store = UserStore.open(CORPUS / "store", fixed_graph=True)
        candidates = grid([PLAN], CONFIG, axes={"learning_rate": [0.003, 0.03]})
        asked = build_request(store, TuningMode.NON_PRIVATE, candidates)
        place = SweepFolder(folder)
        place.begin(asked, "digest")
        score = Score(value=-3.0, loss=3.0, error=0.1, losses=(1.0, 5.0))
        for number, _ in enumerate(asked.candidates, start=1):
            place.note(number, score)

    def read(self, folder: Path) -> None:
        from userdp.sweeping.folder import SweepFolder

        place = SweepFolder(folder)
        place.kept(None, "digest")
        place.scores()


class Config(Target):
    """The options of a command in a file."""

    name = "config"
    what = "TOML for --config"

    def make(self, folder: Path) -> None:
        lines = ["[account]", 'sampling = "users"', "sampling-probability = 0.01", "steps = 100",
                 "noise-multiplier = 1.0", "delta = 1e-6", "[plan]", "budget = 3", "[train]",
                 "learning-rate = 0.1", 'lora-targets = ["a", "b"]', "resume = true"]  # fmt: skip
        (folder / "account.toml").write_text("\n".join(lines))

    def read(self, folder: Path) -> None:
        import contextlib
        import io

        from userdp.cli.app import run
        from userdp.errors import FailureError

        said, told = io.StringIO(), io.StringIO()
        command = ["account", "--config", str(folder / "account.toml"), "--json"]
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            status = run(command)
        assert "Traceback" not in told.getvalue(), told.getvalue()[-400:]
        assert status in (0, 1, 2), f"exit status {status}"
        if status:
            raise FailureError(json.loads(said.getvalue() or "{}").get("error") or told.getvalue())


TARGETS: tuple[type[Target], ...] = (Plans, Sweep, Config)
