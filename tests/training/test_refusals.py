"""What no claim could be true of is refused before anything is charged or written."""

from pathlib import Path

import pytest
import torch

from tests.gradients.campaign import losses
from tests.memory import Memory, MemoryLoss
from tests.plans import els_plan, plan_of_size, uls_plan
from tests.training.toy import toy_model
from userdp.core.errors import FailureError, UseError
from userdp.ledger import StoreLedger
from userdp.sampling import FixedSizeExamples, FixedSizeUsers, TruncatedExamples, TruncatedUsers

NO_ROOM = Memory(most=0)
SMALL = {"group_size": 2, "steps": 2, "l2_clip_norm": 0.5, "noise_multiplier": 2.0}
MANY = {"population": 500, "least_population": 500, "target_delta": 1e-5, **SMALL}
FEW = {"population": 10, "most_population": 10, "cap": 5, "target_delta": 1e-5, **SMALL}


def sgd_over(parameters):
    return {"optimizer": torch.optim.SGD(parameters, lr=0.1, momentum=0.9)}


def stepped(model):
    """Its momentum may hold text that nobody paid for, as much as weights may."""
    how = sgd_over(model.parameters())
    model.transformer.wpe.weight.sum().backward()
    how["optimizer"].step()
    return how


def no_numbers(model):
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = torch.inf
    return {}


def own_generator(model):
    model.transformer.drop.source = torch.Generator()
    return {}


def given(**how):
    return lambda model: how


def of_size(kind, bounds):
    return given(plan=plan_of_size(kind, 2, **bounds))


CASES = {
    "an optimizer of another model": (
        "does not hold", lambda model: sgd_over(torch.nn.Linear(2, 2).parameters())
    ),
    "an optimizer that lacks a parameter": (
        "does not hold 1 of", lambda model: sgd_over([*model.parameters()][1:])
    ),
    "an optimizer of a tensor besides": (
        "holds 1", lambda model: sgd_over([*model.parameters(), torch.nn.Parameter(torch.ones(1))])
    ),
    "invariant_13 an optimizer that took a step": ("state of earlier steps", stepped),
    "invariant_3 a loss over the batch": (
        "on made-up rows", given(loss=losses.over_batch_tokens)
    ),
    "one example that does not fit": (
        "one example of 8 tokens; nothing was charged", given(loss=MemoryLoss(NO_ROOM))
    ),
    "rows that are longer than the model reads": (
        "reads 7 tokens", lambda model: setattr(model.config, "n_positions", 7) or {}
    ),
    "weights that are no numbers": ("NaN or infinite", no_numbers),
    "settings that transformers will not save": (
        "temperature", lambda model: setattr(model.generation_config, "temperature", 0.7) or {}
    ),
    "settings that transformers saves elsewhere": (
        "eneration parameters", lambda model: setattr(model.config, "max_length", 9) or {}
    ),
    "weights that are offloaded": ("weights lie on meta", lambda model: model.to("meta") and {}),
    "adapters that transformers added": (  # whose own way asks for a later peft than this one
        "get_peft_model", lambda model: setattr(model, "_hf_peft_config_loaded", True) or {}
    ),
    "a generator of the model's own": ("of its own", own_generator),
    "fixed-graph adjacency where each record has one user": (
        "fixed-graph adjacency, and each", given(plan=els_plan(group_size=2, fixed_graph=True))
    ),
    "a selection that is not there": ("no selection", given(selection="best")),
    "scores that the selection does not read": (
        "scores say nothing", given(selection="longest", scores=Path("scores.arrow"))
    ),
    "a ranking without scores": ("needs a score", given(selection="lowest-perplexity")),
    "too few users": ("Nothing was charged", of_size(FixedSizeUsers, MANY)),
    "too few examples": ("Nothing was charged", of_size(FixedSizeExamples, MANY)),
    "too many users": ("Nothing was charged", of_size(TruncatedUsers, FEW)),
    "too many examples": ("Nothing was charged", of_size(TruncatedExamples, FEW)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.pitfall(number=9)
@pytest.mark.pitfall(number=11)
def test_it_is_refused_and_nothing_is_charged(begin, store, tmp_path, case):
    told, asked = CASES[case]
    model = toy_model(store)
    with pytest.raises((UseError, FailureError, ValueError), match=told):
        begin(**{"model": model, **asked(model)})
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).history().charges == {}


def test_a_plan_of_which_no_epsilon_holds_is_warned_of_before_it_is_charged(begin):
    with pytest.warns(UserWarning, match="no epsilon holds"):
        begin(uls_plan(noise_multiplier=1e-3)).close()
