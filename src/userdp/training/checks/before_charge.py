"""The self-check before a first charge; it refuses a run whose mechanism is not right here."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from userdp.codec import digest, encode
from userdp.errors import FailureError
from userdp.gradients.hooks import hooks_of
from userdp.gradients.model_randomness import secretly
from userdp.gradients.precision import dtypes_of
from userdp.gradients.shards import let_go
from userdp.training.checks import combination as known
from userdp.training.checks.check import Verdict
from userdp.training.checks.combination import Combination, code, shape_of_model
from userdp.training.checks.every import verdicts
from userdp.training.checks.subject import Subject
from userdp.training.devices import machine_facts
from userdp.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfCheck:
    """That the mechanism was found right here, before anything was charged.

    Args:
        verdicts: of each check; empty where the same combination had passed before.
        earlier: it had.
    """

    verdicts: Sequence[Verdict] = ()
    earlier: bool = False

    @property
    def public(self) -> str:
        """What everybody may know: a function of machine and model, and of nobody's data."""
        if self.earlier:
            return "passed earlier on this machine, for the same model and plan"
        asked = {one.check.invariant for one in self.verdicts if one.worst is not None}
        return f"passed before the first charge: invariants {', '.join(map(str, sorted(asked)))}"

    @property
    def operators(self) -> dict[str, Any]:
        """A line of operator.jsonl."""
        return {
            "earlier": self.earlier,
            "checks": [
                {
                    "check": one.check.name,
                    "invariant": one.check.invariant,
                    "worst": None if one.worst is None else asdict(one.worst),
                }
                for one in self.verdicts
            ],
        }


def require_right_here(subject: Subject, *, engine: str) -> SelfCheck:
    """Ask every check of ``subject``, unless the same combination passed here before.

    A collective; nothing of the model, the optimizer or the generators is changed.

    Args:
        subject: of a run that is about to be charged.
        engine: by its name.

    Raises:
        FailureError: a check failed, on any process: on all of them. Nothing has been charged.
    """
    world = subject.world
    combined = combination_of(subject, engine=engine)
    # Of all machines, each has its own file: all that have not seen it check together.
    if not world.any(not known.passed_earlier(combined)):
        return SelfCheck(earlier=True)
    found = []
    for verdict in verdicts(subject):
        found.append(verdict)
        if not verdict.passed:
            raise _refused(verdict, device=_named(subject.device))
    if not subject.known_noise:  # what a known seed draws is not what others draw
        known.remember(combined)
    return SelfCheck(verdicts=tuple(found))


def _refused(verdict: Verdict, *, device: str) -> FailureError:
    check, worst = verdict.check, verdict.worst
    assert worst is not None
    return FailureError(
        f"the self-check before the first charge failed: invariant {check.invariant} asks that "
        f"{check.claim}, and on this machine ({device}, PyTorch {torch.__version__}) {worst.what} "
        f"came to {worst.value:.6g}, where at most {worst.bound:.6g} is right. An epsilon of such "
        "a run would not hold, so nothing was charged",
        hint="try another --engine, --device or --precision; `userdp selftest` measures each. If "
        "it fails with all of them, or with a plain build of PyTorch, please report it with these "
        "numbers, which are of made-up rows",
    )


@secretly
def combination_of(subject: Subject, *, engine: str) -> Combination:
    """What the answers of `require_right_here` hang on."""
    clip = subject.clip
    with let_go(subject.model):
        precisions = dtypes_of(subject.model, subject.loss, masked=subject.masked)
    named = subject.loss if hasattr(subject.loss, "__qualname__") else type(subject.loss)
    of_clip: Mapping[str, Any] = {**encode(clip), "l2_norm": None}
    return Combination(
        machine=platform.node(),
        device=f"{subject.device.type}: {_named(subject.device)}",
        threads=torch.get_num_threads(),
        precisions=tuple(sorted(map(str, precisions))),
        torch=torch.__version__,
        libraries=known.libraries(),
        settings=known.settings(),
        userdp=f"{__version__} {code()}",
        model=shape_of_model(subject.model),
        loss=f"{named.__module__}.{named.__qualname__} {known.code_of(subject.loss)}, "
        f"masked: {subject.masked}",
        hooks=tuple(
            f"{hook.where} {known.code_of(hook.function)}" for hook in hooks_of(subject.model)
        ),
        engine=f"{engine}, {subject.micro_batch} rows, {subject.longest} tokens",
        clip=digest(of_clip),
        sampling=digest(subject.sampling),
        noise=f"{subject.law.kind}, about 1e{round(math.log10(subject.noise_std))}, "
        f"known seed: {subject.known_noise}",
        processes=subject.world.size,
        sharded=subject.model_is_sharded,
    )


def _named(device: torch.device) -> str:
    return str(machine_facts(device)["device"])
