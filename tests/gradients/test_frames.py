"""From an engine to the clip factors of a layer: few frames of ours, to be read in one go."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import userdp
from userdp.gradients import ClipRule, Units, causal_lm_loss, get_engine

MOST = 5
"""`Engine.__call__`, the choice, the passes, one of them, the clip factors."""

HOME = str(Path(userdp.__file__).parent)


@pytest.mark.parametrize("name", ["auto", "reference"])
def test_a_walk_from_the_engine_to_the_clip_factors_is_short(
    name: str, make_model: Any, make_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, walks = ClipRule.factors, []

    def factors(self: ClipRule, *given: Any, **options: Any) -> Any:
        frame, walk = sys._getframe(1), ["factors"]
        while walk[-1] != "__call__" and frame is not None:
            if frame.f_code.co_filename.startswith(HOME):
                walk.append(frame.f_code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        walks.append(walk)
        return honest(self, *given, **options)

    model: nn.Module = make_model("gpt2-tied")
    engine, units = get_engine(name), Units.from_rows(make_rows([1, 2, 1, 1]))
    engine(model, causal_lm_loss, units, l2_clip_norm=1.0)  # asks what it asks once
    monkeypatch.setattr(ClipRule, "factors", factors)
    engine(model, causal_lm_loss, units, l2_clip_norm=1.0)
    assert walks
    assert all(len(walk) <= MOST for walk in walks), walks
