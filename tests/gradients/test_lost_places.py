"""A tensor whose rows nobody can tell ends the proof, whatever a model does with it then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from tests.gradients.batches import batched_sum
from tests.gradients.test_shared_numbers import CLIP, RARE, UNITS, WIDTH, Shared, loss, moved
from userdp.errors import UseError
from userdp.gradients import get_engine
from userdp.gradients.engines import out_of_sight, rows
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


def backward_within(m: Shared, tokens: Tensor) -> Tensor:
    """A step of an attack on the inputs, whose objective mixes rows."""
    x = m.table(tokens)
    with torch.enable_grad():
        inner = x.detach().requires_grad_(True)
        share = by_row(tokens).sum()
        (F.linear(inner, m.w).square() * share * 1000).mean().backward(inputs=[inner])
    return F.linear(x, m.w)


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


def scalars_first(tokens: Tensor) -> Tensor:
    nothing, one = torch.zeros(1, 1).double(), torch.ones(()).double()
    ones = torch.ones(1, len(tokens)).double()
    return nothing.addmm(one, one, ones, by_row(tokens))[0, 0]  # type: ignore[call-overload,no-any-return]


def embedding_of_torch(m: Shared, tokens: Tensor) -> Tensor:
    found = torch.embedding(by_row(tokens), torch.full((1,), 3))
    return F.linear(m.table(tokens) * striped_rows(found.sum()), m.w)


def looked_up_by_a_lookup(m: Shared, tokens: Tensor) -> Tensor:
    places = torch.arange(len(tokens))
    same = F.embedding(places, torch.full((len(tokens), 1), 3))[:, 0]
    return F.linear(m.table(tokens) * striped_rows(by_row(tokens)[same])[:, None], m.w)


def a_block_that_is_shifted(m: Shared, tokens: Tensor) -> Tensor:
    count = len(tokens)
    base = torch.zeros(3, count, 1).double()
    view = base.view(-1)[1 : 1 + 2 * count].view(2, count, 1)
    view.copy_(by_row(tokens).expand(2, count, 1))
    return F.linear(m.table(tokens) * striped_rows(base[0])[:, None], m.w)


class Counter(nn.Module):
    """In the place of a function that gives back what was saved."""

    found: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(0)


def unpacked_by_a_module(m: Shared, tokens: Tensor) -> Tensor:
    with saved_tensors_hooks(nn.Identity(), nn.Sequential(Counter())):
        return F.linear(m.table(tokens) * striped_rows(by_row(tokens))[:, None], m.w)


def counted_operations(tokens: Tensor) -> float:
    with FlopCounterMode(display=False) as counter:
        chosen = rare(tokens).double()
        torch.outer(chosen, chosen) @ torch.ones(len(chosen), 1).double()
    return float(counter.get_total_flops() > 0)


class Index:
    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.found = 0.0

    def __index__(self) -> int:
        self.found = float((self.tokens == RARE).sum())
        return 0


def sliced_by_an_object(tokens: Tensor) -> float:
    index = Index(tokens)
    torch.zeros(2)[slice(index, None)]
    return index.found


def an_object_in_a_result(tokens: Tensor) -> float:
    index = Index(tokens)
    torch.zeros(2, 2).sum(torch.return_types.max([index, 1]))  # type: ignore[attr-defined]
    return index.found


class Copied:
    def __init__(self, tokens: Tensor) -> None:
        self.tokens, self.found = tokens, 0.0

    def __deepcopy__(self, memo: Any) -> Copied:
        self.found = float((self.tokens == RARE).sum())
        return self


def copied(tokens: Tensor) -> float:
    constant = torch.zeros(1)
    constant.note = Copied(tokens)  # type: ignore[attr-defined]
    copy.deepcopy(constant)
    return constant.note.found  # type: ignore[attr-defined,no-any-return]


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
    "numbers before the matrices": scaled(scalars_first),
    "operations counted by torch": scaled(counted_operations),
    "an object in a slice": scaled(sliced_by_an_object),
    "an object in a result": scaled(an_object_in_a_result),
    "an attribute that is copied": scaled(copied),
    "a dimension by another name": stacked_by_axis,
    "a sort by another name": sorted_by_axis,
    "the other embedding": embedding_of_torch,
    "what was looked up as an index": looked_up_by_a_lookup,
    "a block that is shifted": a_block_that_is_shifted,
    "a module for unpacking": unpacked_by_a_module,
    "a backward pass within": backward_within,
}


@pytest.mark.parametrize("use", COUNTED)
def test_invariant_3_a_pass_in_which_a_place_is_lost_is_not_proved(use: str) -> None:
    model = Tokens(COUNTED[use]).double()
    with pytest.raises((NotCoveredError, TypeError, RuntimeError)):
        batched_sum(model, loss, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize(
    "use",
    ["ones like a selection", "the type of one", "sparse values", "an attribute that is copied"],
)
def test_invariant_3_twin_places_that_are_lost_and_forgotten_are_caught(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.Rows, "_end_if_unknown", lambda rows, result: None)
    model = Tokens(COUNTED[use]).double()
    # Several times: the unit with the rare token may be the one that is copied into empty places.
    assert max(moved(model, batched_sum) for _ in range(6)) > 1


def test_invariant_3_twin_a_backward_pass_within_that_is_not_noted_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows.Rows, "_end_if_unknown", lambda rows, result: None)
    for name in ("_note_code", "_note_learned"):
        monkeypatch.setattr(rows.Rows, name, lambda *of: None)
    assert moved(Tokens(backward_within).double(), batched_sum) > 1


def test_invariant_3_vmap_shows_nobody_all_units() -> None:
    def told(tokens: Tensor) -> float:
        return float(f"{RARE}" in repr(tokens))

    with suppress(UseError):
        assert moved(Tokens(scaled(told)).double(), get_engine("vmap")) <= 1


def test_builtins_that_are_no_methods_of_tensors_are_somebodys_own() -> None:
    assert out_of_sight.runs_code(iter([1]).__next__, (torch.zeros(1),), {})
    assert not out_of_sight.runs_code(Tensor.add, (torch.zeros(1), 1), {})
    assert not out_of_sight.runs_code(Tensor.shape.__get__, (torch.zeros(1),), {})  # type: ignore[attr-defined]
    assert not out_of_sight.runs_code(torch.add, (torch.zeros(1), 1), {})


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
