"""That a run trains and releases the weights that its ledger knows, and no others.

A run asks what its model descends from when it begins. Another run that trains the same tensors
meanwhile, over other people's text, would put what it learns into weights whose ledger says nothing
of it: a tensor trains in one private run at a time.
"""

from __future__ import annotations

import weakref

import torch
from torch import nn

from userdp.errors import UseError
from userdp.gradients import trainable_parameters
from userdp.training.distributed_run import SharedRun
from userdp.training.origin import digest_of_adapters, digest_of_frozen, digest_of_weights


class KnownWeights:
    """The weights of an open run, and what its ledger knows of where they come from.

    Guarantee (invariant 13): a run that asks `require_known` before its first step, and
    `require_frozen` before it releases anything, releases only what its own steps have learned and
    what the model that it was opened with descends from.

    Args:
        run: the open run.
        model: that is trained.
        optimizer: that applies its steps.
        opened_with: digest of the weights that the run was opened with; None of a resumed run,
            whose caller loads a checkpoint.
        trained: names of the parameters that the run trains.
        frozen: digest of everything else when the run was opened; None where it is not compared.
    """

    def __init__(
        self,
        run: SharedRun,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        opened_with: str | None,
        trained: frozenset[str],
        frozen: str | None,
    ) -> None:
        self._run = run
        self._model, self._optimizer = model, optimizer
        self._opened_with = opened_with
        self._trained, self._frozen = trained, frozen
        self._known = False  # whether the weights of the first step were looked at

    def require_known(self) -> None:
        """`UseError` where this process's first step would begin at weights of another origin.

        What those of the opening descend from is in the ledger. What came later nobody was asked
        about; and whoever resumes loads a checkpoint, which may be no other run's model.
        """
        if self._known:
            return
        weights = digest_of_weights(self._model)
        if self._opened_with is not None:
            if weights != self._opened_with:
                raise UseError(
                    "the model's weights changed between make_private() and the first step: the "
                    "claim would say nothing of what they had learned before",
                    hint="load the weights first, and then call make_private()",
                )
            if self._optimizer.state:
                raise UseError(
                    "the optimizer has a state of earlier steps, which may have been taken on "
                    "anybody's text: the claim would say nothing of it",
                    hint="make a new optimizer for a new run",
                )
        elif any(
            self._run.released_elsewhere(one)
            for one in (weights, digest_of_adapters(self._model))
            if one is not None
        ):
            raise UseError(
                "these weights were released by another run over the same people: going on from "
                "them would release what that run has learned, at the price of this one",
                hint="load this run's own checkpoint, or begin a new run from that model",
            )
        self._known = True  # not before: a loop that catches the error must not get by with it

    def require_frozen(self) -> None:
        """`UseError` where something changed that this run does not train, and would release."""
        if self._frozen is None or digest_of_frozen(self._model, self._trained) == self._frozen:
            return
        raise UseError(
            "weights or buffers that this run does not train have changed since it was opened: "
            "the claim would say nothing of what they have learned",
            hint="put them back, or train them by the run's own steps",
        )


class HeldModel:
    """The tensors that an open run trains, until `close`.

    Args:
        model: that the run trains.
    """

    def __init__(self, model: nn.Module) -> None:
        self.trained = _trained(model)
        _open.add(self)

    def close(self) -> None:
        """Let go of the model; twice does no harm."""
        self.trained = set()


_open: weakref.WeakSet[HeldModel] = weakref.WeakSet()


def require_free(model: nn.Module) -> None:
    """Refuse a model of which an open run of this process trains a tensor.

    Models that share tensors, by tying or as adapters over one base, are one model in what they
    share. What one of them only reads may train in another; `KnownWeights.require_frozen` sees it
    before the reader releases anything.

    Raises:
        UseError: names the way out.
    """
    if any(_trained(model) & held.trained for held in _open):
        raise UseError(
            "another private run of this process is open, and trains weights of this model: each "
            "would release what the other has learned, and neither claim would say so",
            hint="end the other run first (leave its block, or call its close()), or train a "
            "copy.deepcopy of the model",
        )


def _trained(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in trainable_parameters(model).values()}
