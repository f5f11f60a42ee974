"""The apps over a grid in this process: what is sent, who may fail, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from tests.federated.toys import made_in, plan
from tests.training.toy import attempts
from userdp.core.errors import FailureError, UseError
from userdp.core.files import read_lines
from userdp.federated import flower
from userdp.federated.federation_plan import claim_of
from userdp.federated.flower import ARRAYS, CONFIG, client, serve
from userdp.federated.rounds import ROUNDS_FILE, aggregate, load_weights
from userdp.federated.silo import build_model, silo_folder, weights_of
from userdp.federated.simulation import run_in_process


@pytest.fixture(autouse=True)
def a_run_of_flowers(monkeypatch):
    """Messages are made inside a run; its engines say which."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class HereGrid(Grid):
    """Nodes 100 to 102 are silos 0 to 2 of a folder; ``fail`` says who fails in which round."""

    def __init__(self, folder, fail=(), silent=(), app=client):
        self.folder, self.fail, self.silent, self.app = folder, set(fail), set(silent), app
        self.replies = []

    set_run = run = create_message = push_messages = pull_messages = None

    def get_node_ids(self):
        return [node for node in (100, 101, 102) if node not in self.silent]

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        node = message.metadata.dst_node_id
        if (node - 100, message.content[CONFIG].get("round")) in self.fail:
            return Message(Error(0), reply_to=message)
        place = {"silo": str(silo_folder(self.folder, node - 100)), "index": node - 100}
        self.replies.append(self.app(message, Context(1, node, place, RecordDict(), {})))
        return self.replies[-1]


def run(grid):
    config = {"folder": str(grid.folder), "round-timeout": 10.0, "wait-timeout": 2.0}
    serve(grid, Context(1, 1, {}, RecordDict(), config))


def replied(folder):
    return [line["replied"] for line in read_lines(folder / ROUNDS_FILE)]


def charged(folder):
    """The steps that each silo was charged."""
    return [attempts(silo_folder(folder, index) / "run") for index in range(3)]


@pytest.mark.parametrize("in_process", [False, True])
def test_all_rounds_run_and_every_ledger_is_complete(tmp_path, in_process):
    made = plan()
    folder = made_in(tmp_path, made)
    if in_process:
        run_in_process(folder, made)
    else:
        run(HereGrid(folder))
    assert replied(folder) == [[0, 1, 2]] * 2
    found = claim_of(folder)
    assert (found.complete, found.guarantee) == (True, made.guarantee())
    assert charged(folder) == [4, 4, 4]
    weights, rounds = load_weights(folder / "model.safetensors")
    assert rounds == 2
    assert any((weights[k] != v).any() for k, v in weights_of(build_model(made.model)[0]).items())


def require_updates_alone(grid, made):
    """All that leaves a silo, to the last field: arrays of the model's shapes in a round."""
    shapes = {k: v.shape for k, v in weights_of(build_model(made.model)[0]).items()}
    sizes = set()
    for reply in grid.replies:
        if reply.metadata.message_type == "train":
            assert set(reply.content) == {ARRAYS}
            assert {k: tuple(a.shape) for k, a in reply.content[ARRAYS].items()} == shapes
            assert {a.dtype for a in reply.content[ARRAYS].values()} == {"float32"}
            # All bytes that the content is sent as, object by object.
            parts = get_all_nested_objects(reply.content).values()
            sizes.add(sum(len(part.deflate()) for part in parts))
        else:
            assert set(reply.content) == {CONFIG}
            assert set(reply.content[CONFIG]) == {"silo", "federation", "model"}
    assert len(sizes) == 1  # no silo's reply is longer for what it holds, to the byte


def test_a_silo_sends_its_noisy_update_and_nothing_else_and_a_count_is_caught(tmp_path):
    grid, made = HereGrid(made_in(tmp_path, plan())), plan()
    run(grid)
    require_updates_alone(grid, made)
    grid.replies[-1].content["metrics"] = ConfigRecord({"num-examples": 17})
    with pytest.raises(AssertionError):
        require_updates_alone(grid, made)


@pytest.mark.slow
def test_a_silo_that_fails_leaves_the_run_going_and_says_only_that_it_failed(tmp_path):
    made = plan(rounds=3)
    folder = made_in(tmp_path, made)
    grid = HereGrid(folder, fail={(1, 2)})
    run(grid)
    assert replied(folder) == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert charged(folder) == [6, 4, 6]
    # Whether it failed may depend on what it held.
    assert claim_of(folder).guarantee == made.guarantee()
    weights, _ = load_weights(folder / "model.safetensors")
    members = flower.Members(grid, made, weights, timeout=5)
    assert members.ask(9, (0, 1, 2), weights) == {}  # a round that is not in the plan
    assert members.ask(1, (0,), {"v": np.zeros(2, "f4")}) == {}
    told = [dict(reply.content[CONFIG]) for reply in grid.replies[-4:]]
    assert told == [{"silo": silo, "failed": True} for silo in (0, 1, 2, 0)]


def test_a_silo_of_another_federation_is_refused_at_the_start(tmp_path):
    folder = made_in(tmp_path, plan())
    other = made_in(tmp_path / "other", plan(rounds=5))
    silo_folder(folder, 1).rename(tmp_path / "aside")
    silo_folder(other, 1).rename(silo_folder(folder, 1))
    with pytest.raises(UseError, match="silo 1: another federation"):
        run(HereGrid(folder))
    assert replied(folder) == []
    assert not (silo_folder(folder, 0) / "run").exists(), "nothing was charged"


@pytest.mark.slow
def test_a_silo_that_never_comes_is_told_at_the_start(tmp_path):
    with pytest.raises(FailureError, match="2 of 3 silos came"):
        run(HereGrid(made_in(tmp_path, plan()), silent={102}))


def test_updates_that_are_no_updates_are_left_out_of_the_mean():
    weights = {"w": np.ones(2, np.float32)}
    updates = {
        0: {"w": np.full(2, 2, np.float32)},
        1: {"w": np.full(2, np.nan, np.float32)},
        2: {"w": np.zeros(3, np.float32)},
        3: {"w": np.full(2, 4, np.float32)},
    }
    after, good, bad = aggregate(weights, updates)
    assert (after["w"].tolist(), good, bad) == ([4.0, 4.0], (0, 3), (1, 2))
    assert aggregate(weights, {})[0] is weights
