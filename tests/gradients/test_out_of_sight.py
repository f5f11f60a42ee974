"""Code that function modes are not told of reads nobody's tokens in a pass that rows share.

And what one unit's pass leaves behind, even if it is put back before the sum is done, is refused.
"""

from __future__ import annotations

import contextvars
import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, library, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gradients.one_pass import one_pass_sum
from tests.gradients.test_shared_numbers import CLIP, RARE, UNITS, WIDTH, Shared, loss, moved
from userdp.errors import UseError
from userdp.gradients import Units, get_engine
from userdp.gradients.engines import engine, out_of_sight, reference, rows, vmap
from userdp.gradients.engines.tape import NotCoveredError
from userdp.gradients.model_randomness import secret_randomness

pytestmark = pytest.mark.usefixtures("unknown_goes_on")

Read = Callable[[Tensor], float]
"""How often some tokens have the rare one, found out where no function mode looks."""


@torch.jit.script
def scripted_number(tokens: Tensor) -> float:
    return float((tokens == 17771).sum())


class Counting(nn.Module):
    def forward(self, tokens: Tensor) -> float:
        return float((tokens == 17771).sum())


scripted_module = torch.jit.script(Counting())


class DispatchReader(TorchDispatchMode):
    found = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.sum.default:
            self.found = float(result)
        return result


class FunctionReader(TorchFunctionMode):
    found = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is Tensor.sum and result.dim() == 0:
            self.found = float(result)
        return result


def by_mode(kind: Any) -> Read:
    def read(tokens: Tensor) -> float:
        with kind() as mode:
            (tokens == RARE).sum()
        found: float = mode.found
        return found

    return read


def by_callable(tokens: Tensor) -> float:
    seen: list[float] = []

    def keep(value: float) -> float:
        seen.append(value)
        return value

    tokens.clone().apply_(keep)
    return float(seen.count(RARE))


def by_subclass(at: str) -> Read:
    """By a class of tensors that handles functions, or what is below them."""

    def read(tokens: Tensor) -> float:
        seen: list[float] = []

        def told(cls: type, *call: Any, **options: Any) -> Tensor:
            seen.append(float((tokens == RARE).sum()))
            return torch.ones(WIDTH)

        members = {"__torch_function__": torch._C._disabled_torch_function_impl}
        kind = type("Reader", (Tensor,), {**members, at: classmethod(told)})
        torch.ones(WIDTH).as_subclass(kind) + 1
        return seen[-1]

    return read


class _Index:
    """Turns itself into a number while a function runs."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens, self.found = tokens, 0.0

    def __index__(self) -> int:
        self.found = float((self.tokens == RARE).sum())
        return 0


def by_index(tokens: Tensor) -> float:
    index = _Index(tokens)
    torch.zeros(3)[cast(int, index)]
    return index.found


@library.custom_op("somebody::count_rare", mutates_args=())
def _count_rare(tokens: Tensor) -> Tensor:
    _found.append(float((tokens == RARE).sum()))
    return tokens.clone()


_found: list[float] = []


def by_operation(tokens: Tensor) -> float:
    # Through a table of Python's own: a list among the globals would be refused as state.
    globals()["_found"] = found = []
    _count_rare(tokens)
    return float(found[-1])


def by_switching_off(tokens: Tensor) -> float:
    with torch._C.DisableTorchFunction():
        return float((tokens == RARE).sum())


READS: dict[str, Read] = {
    "a scripted function": scripted_number,
    "a scripted module": scripted_module,
    "a dispatch mode": by_mode(DispatchReader),
    "a function mode": by_mode(FunctionReader),
    "a callable": by_callable,
    "a class of tensors": by_subclass("__torch_function__"),
    "a class of tensors, below functions": by_subclass("__torch_dispatch__"),
    "an object as an index": by_index,
    "an operation in Python": by_operation,
    "functions switched off": by_switching_off,
}


class Reading(Shared):
    """Scales a layer by how often the whole pass has the rare token."""

    def __init__(self, read: Read) -> None:
        super().__init__(lambda m, x, n: F.linear(x, m.w))
        self.__dict__["read"] = read

    def forward(self, tokens: Tensor) -> Tensor:
        factor = 1 + 5 * self.__dict__["read"](tokens)
        return F.linear(self.table(tokens), self.w) * factor


@pytest.mark.parametrize("read", READS)
def test_invariant_3_a_pass_in_which_code_runs_out_of_sight_is_not_proved(read: str) -> None:
    with pytest.raises(NotCoveredError):
        one_pass_sum(Reading(READS[read]).double(), loss, UNITS, l2_clip_norm=CLIP)


@pytest.mark.parametrize("read", [read for read in READS if read != "an operation in Python"])
@pytest.mark.parametrize("name", ["auto", "vmap"])
def test_invariant_3_the_sum_moves_by_the_clip_norm_at_most(name: str, read: str) -> None:
    assert moved(Reading(READS[read]).double(), get_engine(name)) <= 1


@pytest.mark.parametrize("read", [read for read in READS if read != "a function mode"])
def test_invariant_3_twin_code_that_nobody_looks_for_is_caught(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "noting_calls", lambda note: nullcontext())
    monkeypatch.setattr(rows, "runs_code", lambda *call: False)
    monkeypatch.setattr(rows, "other_modes", lambda: False)
    assert moved(Reading(READS[read]).double(), one_pass_sum) > 1


class SharingRule(torch.autograd.Function):
    """Brings its own rule for ``vmap``, which is handed all units at once."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x: Tensor, tokens: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor, tokens: Tensor) -> Any:
        return x * (1 + 5 * (tokens == RARE).sum()), 0


class WithRule(Shared):
    def __init__(self) -> None:
        super().__init__(lambda m, x, n: F.linear(x, m.w))

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = SharingRule.apply(F.linear(self.table(tokens), self.w), tokens)
        return answer


def test_invariant_3_vmap_runs_no_rule_of_somebodys_own() -> None:
    assert moved(WithRule().double(), get_engine("vmap")) <= 1


def test_invariant_3_twin_a_rule_of_somebodys_own_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vmap, "runs_code", lambda *call: False)
    assert moved(WithRule().double(), get_engine("vmap")) > 1


def test_a_mode_around_a_pass_is_seen_and_those_of_torch_are_no_hindrance() -> None:
    model = Shared(lambda m, x, n: F.linear(x, m.w)).double()
    for mode in (DispatchReader, FunctionReader):
        with mode(), pytest.raises(NotCoveredError):
            one_pass_sum(model, loss, UNITS, l2_clip_norm=CLIP)
    with torch.device("cpu"):
        one_pass_sum(model, loss, UNITS, l2_clip_norm=CLIP)


def test_everything_is_put_back() -> None:
    before = [getattr(where, name) for where, name in out_of_sight._CALLS]
    told: list[int] = []
    with out_of_sight.noting_calls(lambda: told.append(1)):
        with out_of_sight.noting_calls(lambda: told.append(2)):
            scripted_number(UNITS.input_ids)
        scripted_module(UNITS.input_ids)
    scripted_number(UNITS.input_ids)
    assert told == [1, 2, 1]
    assert [getattr(where, name) for where, name in out_of_sight._CALLS] == before


def test_invariant_3_unwritten_memory_has_no_place() -> None:
    """It may hold what another unit left there."""

    def use(m: Shared, x: Tensor, n: Tensor) -> Tensor:
        made: Tensor = F.linear(x, m.w) + torch.empty_like(m.v).nan_to_num() * 0
        return made

    with pytest.raises(NotCoveredError):
        one_pass_sum(Shared(use).double(), loss, UNITS, l2_clip_norm=CLIP)


# What a pass leaves behind for the next one.


class Remembering(Shared):
    """Scales a layer by what the pass before found; the last unit leaves what was there."""

    def __init__(self, remember: Callable[[Shared, float], float]) -> None:
        super().__init__(lambda m, x, n: F.linear(x, m.w))
        self.__dict__["remember"] = remember
        self.last = 0.0

    def forward(self, tokens: Tensor) -> Tensor:
        before = self.__dict__["remember"](self, float((tokens == RARE).sum()))
        return F.linear(self.table(tokens), self.w) * (1 + 5 * before)


def in_an_attribute(m: Shared, found: float) -> float:
    before = float(m.last)  # type: ignore[arg-type]
    m.last = found  # type: ignore[assignment]
    return before


_variable: contextvars.ContextVar[tuple[float, ...]] = contextvars.ContextVar("last")


class Held:
    value = 0.0


_object: contextvars.ContextVar[Held] = contextvars.ContextVar("object")


def in_a_variable(m: Shared, found: float) -> float:
    (before,) = _variable.get((0.0,))
    _variable.set((found,))
    return before


def in_an_object(m: Shared, found: float) -> float:
    held = _object.get(Held())
    before, held.value = held.value, found
    _object.set(held)
    return before


def in_the_environment(m: Shared, found: float) -> float:
    before = float(os.environ.get("USERDP_TESTS_LAST", "0"))
    os.environ["USERDP_TESTS_LAST"] = str(found)
    return before


def in_a_setting(m: Shared, found: float) -> float:
    before = float(torch.get_num_threads() - 1)
    torch.set_num_threads(1 + int(found))
    return before


MEMORIES = {
    "the environment": in_the_environment,
    "a setting of torch": in_a_setting,
    "an attribute": in_an_attribute,
    "a tuple in a context variable": in_a_variable,
    "an object in a context variable": in_an_object,
}


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    os.environ.pop("USERDP_TESTS_LAST", None)


def forgotten(memory: str) -> Remembering:
    _variable.set((0.0,))
    _object.set(Held())
    os.environ.pop("USERDP_TESTS_LAST", None)
    torch.set_num_threads(1)
    return Remembering(MEMORIES[memory])


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", ["auto", "reference", "vmap"])
def test_invariant_3_state_that_is_put_back_before_the_sum_is_done_is_refused(
    name: str, memory: str
) -> None:
    with pytest.raises(UseError, match="changed"):
        get_engine(name)(forgotten(memory), loss, UNITS, l2_clip_norm=CLIP)


def test_invariant_3_a_pass_of_one_row_leaves_nothing_for_a_pass_of_several() -> None:
    """There Python may read what it likes; units of one row, and then of three."""
    units = Units.from_rows([[[1, RARE, 2]], [[1, 2, 3]] * 3, [[4, 2, 3]] * 3])
    with pytest.raises(UseError, match="changed"):
        get_engine("auto")(forgotten("an attribute"), loss, units, l2_clip_norm=CLIP, micro_batch=3)


@pytest.mark.parametrize("memory", MEMORIES)
def test_invariant_3_twin_state_that_is_looked_at_in_the_end_alone_is_caught(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.Task, "require_unchanged", lambda task: None)
    assert moved(forgotten(memory).double(), reference_sum) > 1


def reference_sum(model: nn.Module, loss: Any, units: Units, *, l2_clip_norm: float) -> Any:
    """Without the questions that are asked on made-up rows."""
    task = engine.Task(model=model, loss=loss, units=units, l2_clip_norm=l2_clip_norm)
    return reference.sum_of_units(task)


def by_python(tokens: Tensor) -> float:
    drawn = random.random()
    random.seed(int((tokens == RARE).sum()) + 7)
    return drawn


def by_numpy(tokens: Tensor) -> float:
    drawn = float(np.random.rand())
    np.random.seed(int((tokens == RARE).sum()) + 7)
    return drawn


def by_torch(tokens: Tensor) -> float:
    drawn = float(torch.rand(()))
    state = torch.get_rng_state()
    state[24::8] ^= int((tokens == RARE).sum())  # the words that are to come
    torch.set_rng_state(state)
    return drawn


@pytest.mark.parametrize("draw", [by_python, by_numpy, by_torch])
def test_invariant_14_a_state_that_a_pass_leaves_in_a_generator_ends_with_its_unit(
    draw: Read,
) -> None:
    """Equal states at the start, and one unit says something else: all others draw the same."""
    assert others_apart(draw) == 0


@pytest.mark.parametrize("draw", [by_python, by_numpy, by_torch])
def test_invariant_14_twin_generators_that_run_on_are_caught(
    draw: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference.StatesApart, "load_next", lambda states: None)
    assert others_apart(draw) > 0


def others_apart(draw: Read) -> float:
    """How far the norms of the other units move if unit 3 has no rare token."""
    model, found = Reading(draw), []
    for rare in (RARE, 2):
        units = Units.from_rows([[[1 + u, rare if u == 3 else 2, 3 + u]] for u in range(8)])
        with secret_randomness(unsafe_key="a test"):
            norms = reference_sum(model, loss, units, l2_clip_norm=CLIP).norms
        found.append(torch.cat([norms[:3], norms[4:]]))
    return float((found[0] - found[1]).abs().max())
