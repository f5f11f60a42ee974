"""A run so small that its audit takes about a second."""

from tests.data.corpora import ListSource, interleaved
from tests.plans import for_users
from tests.training.toy import cycles, toy_store
from tests.words import write_tokenizer
from userdp.auditing.canaries import Repetition
from userdp.auditing.extra_run import extra_run
from userdp.data.prepare import prepare_store
from userdp.data.progress import NoProgress
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.training.config import OptimizerName, TrainConfig

CONFIG = TrainConfig(
    model="new",
    layers=1,
    width=16,
    heads=2,
    learning_rate=0.02,
    optimizer=OptimizerName.SGD,
    micro_batch=64,
)
CANARIES = 48


def audit_store(folder, users=200):
    return toy_store(folder, cycles(users), held_out=0.2)


def store_of(folder, texts, *, held_out_examples):
    """Records of words by user, half of the users held out."""
    prepare_store(
        ListSource(interleaved(texts)),
        folder / "store",
        tokenizer=StoreTokenizer.load(write_tokenizer(folder / "tokenizer.json")),
        seq_len=8,
        held_out_users=0.5,
        held_out_examples=held_out_examples,
    )
    return UserStore.open(folder / "store")


def audit_plan(**changes):
    values = {
        "population": 200,
        "cohort_size": 20,
        "group_size": 2,
        "steps": 25,
        "l2_clip_norm": 0.5,
        "target_delta": 1e-5,
        "noise_multiplier": 1.0,
    }
    return for_users(**{**values, **changes})


def repetition(store, place, plan, config=CONFIG):
    return Repetition(
        store=store, plan=plan, config=config, place=place, device="cpu", progress=NoProgress()
    )


def audited(store, folder, plan=None, canaries=CANARIES):
    plan = plan or audit_plan()
    return extra_run(repetition(store, folder / "work", plan), plan, canaries=canaries)
