"""What a proof says of a pass holds when its code runs again, and when a model catches errors."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.gradients.one_pass import one_pass_sum
from tests.gradients.test_shared_numbers import CLIP, RARE, UNITS, WIDTH, Shared, loss, moved
from userdp.errors import UseError
from userdp.gradients import get_engine
from userdp.gradients.engines import rows, vmap
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.tape import NotCoveredError

pytestmark = pytest.mark.usefixtures("unknown_goes_on")

# Checkpointed code that sees something else when it runs once more.


def striped(n: Tensor) -> Tensor:
    odd = torch.arange(WIDTH) % 2 == 1
    return torch.where(odd, 1.0, 1 - 0.4 * n.detach())


def bound_anew(m: Shared, x: Tensor, n: Tensor) -> Tensor:
    scale = torch.ones(WIDTH, dtype=x.dtype)
    y = checkpoint(lambda x: x * scale, x, use_reentrant=False)
    scale = striped(n)
    return F.linear(y, m.w)


def written_later(m: Shared, x: Tensor, n: Tensor) -> Tensor:
    scale = torch.ones(WIDTH, dtype=x.dtype)
    y = checkpoint(lambda x: x * scale, x, use_reentrant=False)
    scale.copy_(striped(n))
    return F.linear(y, m.w)


def counting_calls(m: Shared, x: Tensor, n: Tensor) -> Tensor:
    calls: list[int] = []

    def run(y: Tensor) -> Tensor:
        calls.append(1)
        return y * (torch.ones(WIDTH, dtype=y.dtype) if len(calls) == 1 else striped(n))

    return F.linear(checkpoint(run, x, use_reentrant=False), m.w)


def along_another_dimension(m: Shared, x: Tensor, n: Tensor) -> Tensor:
    """There are as many rows as columns, so that no shape tells."""
    calls: list[int] = []

    def run(x: Tensor) -> Tensor:
        calls.append(1)
        return x + (x.sum(1) * 5).softmax(1 if len(calls) == 1 else 0)[:, None]

    return F.linear(checkpoint(run, x, use_reentrant=False), m.w)


AGAIN = [bound_anew, written_later, counting_calls, along_another_dimension]


@pytest.mark.parametrize("use", AGAIN)
def test_invariant_3_code_that_sees_something_else_on_the_way_back_is_not_proved(use: Any) -> None:
    with pytest.raises(NotCoveredError):
        one_pass_sum(Shared(use).double(), loss, UNITS, l2_clip_norm=CLIP)
    with suppress(UseError):  # of made-up rows, where that shows it
        assert moved(Shared(use).double(), get_engine("auto")) <= 1


@pytest.mark.parametrize("use", AGAIN)
def test_invariant_3_twin_a_way_back_that_is_not_followed_is_caught(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.Rows, "kept_apart", lambda rows: True)
    assert moved(Shared(use).double(), one_pass_sum) > 1


def test_checkpointed_code_that_stays_the_same_is_proved() -> None:
    def use(m: Shared, x: Tensor, n: Tensor) -> Tensor:
        scale = torch.ones(WIDTH, dtype=x.dtype)
        y = checkpoint(lambda x: F.relu(x * scale, inplace=True).exp(), x, use_reentrant=False)
        return F.linear(y, m.w)

    assert moved(Shared(use).double(), one_pass_sum) <= 1


# Errors that a model catches.


class Catching(Shared):
    """Turns its answer where one of torch's functions fails."""

    def forward(self, tokens: Tensor) -> Tensor:
        try:  # of all rows at once
            torch.linalg.cholesky((1 - 2 * (tokens == RARE).double())[..., None, None])
            scale = torch.ones(WIDTH)
        except torch.linalg.LinAlgError:
            scale = striped(torch.tensor(5.0))
        return F.linear(self.table(tokens) * scale, self.w)


class CatchingAll(Shared):
    """Learns of a row's numbers what the vmap engine refuses, and catches the refusal."""

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.table(tokens)
        with suppress(Exception):
            x = x * (1 - 0.3 * torch.sign(x.detach()))
        return F.linear(x, self.w)


def test_invariant_3_an_error_that_a_model_catches_is_a_look_at_its_numbers() -> None:
    model = Catching(None).double()  # type: ignore[arg-type]
    with pytest.raises(NotCoveredError):
        one_pass_sum(model, loss, UNITS, l2_clip_norm=CLIP)
    for name in ("vmap", "auto", "reference"):
        assert moved(model, get_engine(name)) <= 1


def test_invariant_3_twin_errors_that_count_for_nothing_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows.Rows, "note_error", lambda *of: None)
    assert moved(Catching(None).double(), one_pass_sum) > 1  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Catching, CatchingAll])
def test_invariant_3_the_vmap_engine_ends_a_pass_in_which_a_call_failed(
    kind: type[Shared],
) -> None:
    task = Task(
        model=kind(None).double(),  # type: ignore[arg-type]
        loss=loss,
        units=UNITS,
        l2_clip_norm=CLIP,
    )
    with pytest.raises(NotCoveredError):
        vmap.sum_of_batches(task)
