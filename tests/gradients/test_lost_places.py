"""A tensor whose rows nobody can tell ends the proof, whatever a model does with it then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gradients.batches import batched_sum
from tests.gradients.test_shared_numbers import CLIP, RARE, UNITS, WIDTH, Shared, loss, moved
from userdp.gradients.certificate import rows
from userdp.gradients.engines.tape import NotCoveredError

Use = Callable[[Shared, Tensor], Tensor]


class Tokens(Shared):
    """Computes with the tokens themselves."""

    def __init__(self, take: Use) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.__dict__["take"] = take

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.__dict__["take"](self, tokens)
        return found


def scaled(count: Callable[[Tensor], Any]) -> Use:
    """Answers by how often all rows have the rare token, as ``count`` finds it."""

    def take(m: Shared, tokens: Tensor) -> Tensor:
        odd = (torch.arange(WIDTH) % 2).double()
        return F.linear(m.table(tokens) * (1 - odd * 2.0 * count(tokens)), m.w)

    return take


def rare(tokens: Tensor) -> Tensor:
    return tokens[tokens == RARE]


def by_row(tokens: Tensor) -> Tensor:
    return (tokens == RARE).double().sum(1, keepdim=True)


def striped_rows(found: Tensor) -> Tensor:
    return 1 - (torch.arange(WIDTH) % 2).double() * 2.0 * found


def sorted_by_axis(m: Shared, tokens: Tensor) -> Tensor:
    return F.linear(torch.sort(m.table(tokens), axis=0)[0], m.w)  # type: ignore[call-overload,no-any-return]


def stacked_by_axis(m: Shared, tokens: Tensor) -> Tensor:
    found = by_row(tokens)[:, 0]
    both = torch.stack([found, found], axis=1)  # type: ignore[call-overload]
    return F.linear(m.table(tokens) * striped_rows(both.sum()), m.w)


def summed_by_a_tensor(tokens: Tensor) -> Tensor:
    return by_row(tokens)[:, 0].sum(torch.tensor(0))  # type: ignore[call-overload,no-any-return]


def a_block_that_is_shifted(m: Shared, tokens: Tensor) -> Tensor:
    count = len(tokens)
    base = torch.zeros(3, count, 1).double()
    view = base.view(-1)[1 : 1 + 2 * count].view(2, count, 1)
    view.copy_(by_row(tokens).expand(2, count, 1))
    return F.linear(m.table(tokens) * striped_rows(base[0])[:, None], m.w)


COUNTED: dict[str, Use] = {
    "ones like a selection": scaled(lambda t: torch.ones_like(rare(t)).sum().double()),
    "the length of zeros like it": scaled(lambda t: len(torch.zeros_like(rare(t)))),
    "how many different ones": scaled(
        lambda t: torch.ones_like(torch.unique(torch.where(t == RARE, 1, 0))).sum() - 1
    ),
    "a selection without dimensions": scaled(lambda t: int(rare(t).squeeze().dim() == 0)),
    "the type of one": scaled(
        lambda t: int((rare(t).double().squeeze() + torch.zeros(1)).dtype == torch.float32)
    ),
    "sparse values": scaled(
        lambda t: torch.ones_like((t == RARE).double().to_sparse().coalesce().values()).sum()
    ),
    "a dimension by a tensor": scaled(summed_by_a_tensor),
    "a dimension by another name": stacked_by_axis,
    "a sort by another name": sorted_by_axis,
    "a block that is shifted": a_block_that_is_shifted,
}


@pytest.mark.parametrize("use", COUNTED)
def test_invariant_3_a_pass_in_which_a_place_is_lost_is_not_proved(use: str) -> None:
    model = Tokens(COUNTED[use]).double()
    with pytest.raises((NotCoveredError, TypeError, RuntimeError)):
        batched_sum(model, loss, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize("use", ["ones like a selection", "the type of one", "sparse values"])
def test_invariant_3_twin_places_that_are_lost_and_forgotten_are_caught(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.Rows, "_end_if_unknown", lambda rows, result: None)
    model = Tokens(COUNTED[use]).double()
    # Several times: the unit with the rare token may be the one that is copied into empty places.
    assert max(moved(model, batched_sum) for _ in range(6)) > 1


@pytest.mark.parametrize(
    ("use", "proved"),
    [
        (lambda m, x: x.max(-1, keepdim=True).values, True),
        (lambda m, x: x.max(-1, keepdim=True).indices.double() * 0, False),
        (lambda m, x: torch.ones(x.max(-1).indices.shape, dtype=x.dtype)[..., None], False),
        (lambda m, x: x * len(x.max(-1).indices), False),
    ],
    ids=["values", "indices", "their shape", "their number"],
)
def test_indices_that_nobody_uses_end_no_proof(use: Use, proved: bool) -> None:
    """Of `max`, whose values are a row's own; whoever uses its indices ends it (`steps`)."""

    def take(m: Shared, tokens: Tensor) -> Tensor:
        x = m.table(tokens)
        return F.linear(x + use(m, x), m.w)

    try:
        batched_sum(Tokens(take), loss, UNITS, l2_clip_norm=CLIP)
    except NotCoveredError:
        assert not proved
    else:
        assert proved
