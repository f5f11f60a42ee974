"""The apps over a grid in this process: what is sent, who may fail, and what is refused."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `federated` is not installed")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.metadata import Metadata
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from tests.federated.plans import NUMBERS, plan
from tests.federated.toys import images
from tests.training.toy import attempts
from userdp.core.errors import FailureError, UseError
from userdp.core.files import read_lines
from userdp.federated import flower
from userdp.federated import rounds as rounds_module
from userdp.federated.federation_plan import claim_of
from userdp.federated.flower import ARRAYS, CONFIG, client, serve
from userdp.federated.rounds import ROUNDS_FILE, aggregate, load_weights
from userdp.federated.silo import build_model, silo_folder, weights_of
from userdp.federated.simulation import make_federation, run_in_process


@pytest.fixture(autouse=True)
def a_run_of_flowers(monkeypatch):
    """Messages are made inside a run; its engines say which."""
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


class HereGrid(Grid):
    """Nodes 100, 101, … are silos 0, 1, … of a folder; ``fail`` says who fails in which round."""

    def __init__(self, folder, silos, fail=(), silent=()):
        self.app = client
        self.contexts = {
            100 + i: Context(
                1, 100 + i, {"silo": str(silo_folder(folder, i)), "index": i}, RecordDict(), {}
            )
            for i in range(silos)
        }
        self.fail, self.silent = set(fail), set(silent)
        self.replies = []

    set_run = run = create_message = push_messages = pull_messages = None

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.silent]

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(f"{number}", message) for number, message in enumerate(messages)]

    def answer(self, number, message):
        asked = message.metadata
        fails = (asked.dst_node_id - 100, message.content[CONFIG].get("round")) in self.fail
        delivered = Message(
            metadata=Metadata(
                run_id=1,
                message_id=number,
                src_node_id=1,
                # Flower's server answers for a node that died, under its own number.
                dst_node_id=1 if fails else asked.dst_node_id,
                reply_to_message_id="",
                group_id="",
                created_at=asked.created_at,
                ttl=3600,
                message_type=asked.message_type,
            ),
            content=message.content,
        )
        if fails:
            return Message(Error(0), reply_to=delivered)
        self.replies.append(self.app(delivered, self.contexts[asked.dst_node_id]))
        return self.replies[-1]


def federation(tmp_path, made):
    folder = tmp_path / "federation"
    make_federation(folder, made, images(20, least=4), tokenizer=NUMBERS)
    return folder


def charged(folder, silos):
    """The steps that each silo was charged."""
    return [attempts(silo_folder(folder, index) / "run") for index in range(silos)]


def run(folder, grid):
    config = {"folder": str(folder), "round-timeout": 10.0, "wait-timeout": 2.0}
    serve(grid, Context(1, 1, {}, RecordDict(), config))


def replied(folder):
    return [line["replied"] for line in read_lines(folder / ROUNDS_FILE)]


@pytest.mark.parametrize("in_process", [False, True])
def test_all_rounds_run_and_every_ledger_is_complete(tmp_path, in_process):
    made = plan()
    folder = federation(tmp_path, made)
    if in_process:
        run_in_process(folder, made)
    else:
        run(folder, HereGrid(folder, 3))
    assert replied(folder) == [[0, 1, 2]] * 2
    found = claim_of(folder)
    assert (found.complete, found.guarantee) == (True, made.guarantee())
    assert charged(folder, 3) == [4, 4, 4]
    weights, rounds = load_weights(folder / "model.safetensors")
    assert rounds == 2
    assert any((weights[k] != v).any() for k, v in weights_of(build_model(made.model)[0]).items())


def contents(reply):
    return {name: type(record).__name__ for name, record in reply.content.items()}


def test_a_silo_sends_its_noisy_update_and_nothing_else(tmp_path):
    """All that leaves a silo, to the last field: arrays of the model's shapes in a round."""
    made = plan()
    folder = federation(tmp_path, made)
    grid = HereGrid(folder, 3)
    run(folder, grid)
    shapes = {k: v.shape for k, v in weights_of(build_model(made.model)[0]).items()}
    sizes = set()
    for reply in grid.replies:
        if reply.metadata.message_type == "train":
            assert contents(reply) == {ARRAYS: "ArrayRecord"}
            assert {k: tuple(a.shape) for k, a in reply.content[ARRAYS].items()} == shapes
            assert {a.dtype for a in reply.content[ARRAYS].values()} == {"float32"}
            # All bytes that the content is sent as, object by object.
            parts = get_all_nested_objects(reply.content).values()
            sizes.add(sum(len(part.deflate()) for part in parts))
        else:
            assert contents(reply) == {CONFIG: "ConfigRecord"}
            assert set(reply.content[CONFIG]) == {"silo", "federation", "model"}
    assert len(sizes) == 1  # no silo's reply is longer for what it holds, to the byte


def test_broken_twin_a_silo_that_also_sends_a_count_is_caught(tmp_path):
    folder = federation(tmp_path, plan())
    grid = HereGrid(folder, 3)
    honest = grid.app

    def leaks(message, context):
        reply = honest(message, context)
        reply.content["metrics"] = ConfigRecord({"num-examples": 17})
        return reply

    grid.app = leaks
    run(folder, grid)
    assert all(set(contents(reply)) - {ARRAYS, CONFIG} for reply in grid.replies)


@pytest.mark.slow
def test_a_silo_that_fails_in_a_round_leaves_the_run_going(tmp_path):
    made = plan(rounds=3)
    folder = federation(tmp_path, made)
    run(folder, HereGrid(folder, 3, fail={(1, 2)}))
    assert replied(folder) == [[0, 1, 2], [0, 2], [0, 1, 2]]
    assert charged(folder, 3) == [6, 4, 6]
    assert (
        claim_of(folder).guarantee == made.guarantee()
    )  # whether it failed may depend on what it held


@pytest.mark.slow
def test_a_server_that_restarts_goes_on_after_its_last_saved_round(tmp_path, monkeypatch):
    made = plan(rounds=3)
    folder = federation(tmp_path, made)
    grid = HereGrid(folder, 3)
    save, saved = rounds_module.save_weights, []

    def dies(path, weights, *, rounds):
        if rounds == 2 and not saved:
            saved.append(rounds)
            raise KeyboardInterrupt
        save(path, weights, rounds=rounds)

    monkeypatch.setattr(rounds_module, "save_weights", dies)
    with pytest.raises(KeyboardInterrupt):
        run(folder, grid)
    run(folder, grid)
    assert [line["round"] for line in read_lines(folder / ROUNDS_FILE)] == [1, 2, 3]
    assert claim_of(folder).complete  # round 2 was charged once


def test_a_silo_of_another_federation_is_refused_at_the_start(tmp_path):
    folder = federation(tmp_path, plan())
    other = federation(tmp_path / "other", plan(rounds=5))
    (silo_folder(folder, 1)).rename(tmp_path / "aside")
    (silo_folder(other, 1)).rename(silo_folder(folder, 1))
    with pytest.raises(UseError, match="silo 1: another federation"):
        run(folder, HereGrid(folder, 3))
    assert replied(folder) == []
    assert not (silo_folder(folder, 0) / "run").exists(), "nothing was charged"


@pytest.mark.slow
def test_a_silo_that_never_comes_is_told_at_the_start(tmp_path):
    folder = federation(tmp_path, plan())
    with pytest.raises(FailureError, match="2 of 3 silos came"):
        run(folder, HereGrid(folder, 3, silent={102}))


@pytest.mark.slow
def test_of_an_error_a_silo_says_only_that_there_was_one(tmp_path):
    made = plan()
    folder = federation(tmp_path, made)
    grid = HereGrid(folder, 3)
    run(folder, grid)
    weights, _ = load_weights(folder / "model.safetensors")
    members = flower.Members(grid, made, weights, timeout=5)
    assert members.ask(9, (0, 1, 2), weights) == {}  # a round that is not in the plan
    assert members.ask(1, (0,), {"v": np.zeros(2, "f4")}) == {}
    told = [dict(reply.content[CONFIG]) for reply in grid.replies[-4:]]
    assert told == [{"silo": silo, "failed": True} for silo in (0, 1, 2, 0)]
    assert claim_of(folder).complete


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
