"""From a step of a private run to the clip factors of a layer: few frames, to be read in one go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import userdp
from tests.plans import uls_plan
from tests.training.toy import private_run, sgd, toy_model
from userdp.data.store import UserStore
from userdp.gradients import ClipRule

MOST = {"auto": 7, "reference": 9}
"""`PrivateRun._step`, `StepMechanism.take`, then the engine's (`tests/gradients/test_frames`)."""

HOME = str(Path(userdp.__file__).parent)


@pytest.mark.parametrize("engine", MOST)
def test_a_walk_from_a_step_to_the_clip_factors_is_short(
    engine: str, store: UserStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, walks = ClipRule.factors, []

    def factors(self: ClipRule, *given: Any, **options: Any) -> Any:
        frame, walk = sys._getframe(1), ["factors"]
        while walk[-1] != "_step" and frame is not None:
            if frame.f_code.co_filename.startswith(HOME):
                walk.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        walks.append(walk[::-1])
        return honest(self, *given, **options)

    model = toy_model(store)
    optimizer = sgd(model)
    plan = uls_plan(population=40, cohort_size=20, steps=1)
    run = private_run(model, optimizer, store, plan, out=tmp_path / "run", engine=engine)
    with run:
        monkeypatch.setattr(ClipRule, "factors", factors)
        for _ in run:
            optimizer.step()
    assert walks
    assert all(walk[0] == "_step" and len(walk) <= MOST[engine] for walk in walks), walks
