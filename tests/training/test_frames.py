"""From a step of a private run to the clip factors of a layer: few frames, to be read in one go."""

import sys
from pathlib import Path

import pytest

import userdp
from tests.plans import uls_plan
from tests.training.toy import take
from userdp.gradients import ClipRule

MOST = {"auto": 7, "reference": 9}
"""`PrivateRun._step`, `StepMechanism.take`, then the engine's."""

HOME = str(Path(userdp.__file__).parent)


@pytest.mark.parametrize("engine", MOST)
def test_a_walk_from_a_step_to_the_clip_factors_is_short(engine, begin, monkeypatch):
    honest, walks = ClipRule.factors, []

    def factors(self, *given, **options):
        frame, walk = sys._getframe(1), ["factors"]
        while walk[-1] != "_step" and frame is not None:
            if frame.f_code.co_filename.startswith(HOME):
                walk.append(frame.f_code.co_name)
            frame = frame.f_back
        walks.append(walk[::-1])
        return honest(self, *given, **options)

    with begin(uls_plan(population=40, cohort_size=20, steps=1), engine=engine) as private:
        monkeypatch.setattr(ClipRule, "factors", factors)
        take(private)
    assert walks
    assert all(walk[0] == "_step" and len(walk) <= MOST[engine] for walk in walks), walks
