"""The store that Spark writes is the one that a single process writes, and so are the errors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.corpora import REAL_DATA, corpus, interleaved, view, write_jsonl
from userdp.core.errors import FailureError, UseError
from userdp.data import spark as job
from userdp.data.ownership import Owners
from userdp.data.prepare import append_records, prepare_store
from userdp.data.sources import SourceOptions, memory, open_source
from userdp.data.splits import SplitRule
from userdp.data.store import UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.data.verify import verify_store

LAYOUT = ("store_id", "segments", "blocks_sha256", "states")
"""What two stores of the same content may differ in."""

UNUSABLE = [
    b"\xff", b"", b"{", b"[1]", {"user": "a"}, {"text": "b"}, {"user": "c", "text": " "},
    {"user": 1.5, "text": "d"}, {"user": ["e", "f"], "text": ""}, {"user": "k", "text": "l"},
    {"user": ["g", "h"], "text": "i j"},
]  # fmt: skip


def rows(users: int) -> list[dict[str, str]]:
    return [
        {"user": record.user.decode(), "text": record.text.decode()}
        for record in interleaved(corpus(users))
    ]


def mixed(folder: Path, users: int = 60) -> Path:
    """Files of JSON Lines with everything that is dropped, and records of several owners."""
    good: list[object] = rows(users)
    for place, odd in enumerate(UNUSABLE * 5):
        good.insert(place * 7 % len(good), odd)
    place = folder / "mixed"
    place.mkdir()
    for number in range(4):
        write_jsonl(
            place / f"{number}.jsonl", good[number * len(good) // 4 : (number + 1) * len(good) // 4]
        )
    return place


def made(source, out: Path, engine: str, **options: object) -> dict[str, object]:
    """What the store that ``engine`` writes says of itself, but for its layout."""
    options = {"seq_len": 8, **options}
    meta = prepare_store(
        source, out, tokenizer=StoreTokenizer.load(), engine=engine, **options
    ).to_dict()
    return {name: value for name, value in meta.items() if name not in LAYOUT}


def both(source, folder: Path, **options: object) -> dict[str, object]:
    """Prepare by both engines, compare all there is, and return what the store says of itself."""
    one, other = (
        made(source, folder / engine, engine, **options) for engine in ("duckdb", "spark")
    )
    assert one == other
    stores = [UserStore.open(folder / engine, fixed_graph=True) for engine in ("duckdb", "spark")]
    assert view(stores[0]) == view(stores[1])
    assert verify_store(folder / "spark").ok
    assert not list(folder.glob(".*"))
    return other


def several_kinds(folder: Path):
    """Compressed, with a byte-order mark, in row groups, with cells of several lines."""
    every, first = rows(40), folder / "a.jsonl"
    first.write_bytes(b"\xef\xbb\xbf" + write_jsonl(first, every[:50]).read_bytes())
    plain = write_jsonl(folder / "b", every[50:90]).read_bytes()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(plain))
    pq.write_table(pa.Table.from_pylist(every[90:]), folder / "c.parquet", row_group_size=17)
    (folder / "d.csv").write_text('user,text\nuser001,"two\nlines"\n,nobody\n')
    names = ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.csv")
    return open_source([str(folder / name) for name in names])


def conversations(folder: Path):
    talk = [
        {"user": row["user"], "prompt": row["text"], "completion": row["text"][::-1]}
        for row in rows(30)
    ]
    return open_source([str(write_jsonl(folder / "talk.jsonl", talk))])


def domains(folder: Path):
    pytest.importorskip("tldextract")
    pages = [
        {"url": f"https://www.{row['user']}.co.uk/{n}", "text": row["text"]}
        for n, row in enumerate(rows(20))
    ]
    return open_source([str(write_jsonl(folder / "c4-x.jsonl", pages))], kind="c4")


def everything(folder: Path):
    return open_source([str(mixed(folder))])


INPUTS = {
    **{f"split by {rule}": (everything, {"split": rule}) for rule in SplitRule},
    "several kinds": (several_kinds, {}),
    "conversations": (conversations, {}),
    "domains": (domains, {}),
    "in memory": (lambda _: memory.table_source(rows(30), SourceOptions()), {}),
    "several owners": (everything, {"owners": Owners.GREEDY, "records_per_user": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INPUTS)
def test_every_record_is_stored_or_counted_as_in_one_process(session, small, tmp_path, name):
    source, options = INPUTS[name]
    meta = both(source(tmp_path), tmp_path, **options)
    assert meta["loss_mask"] is (name == "conversations")
    if "split" in options:
        assert meta["ownership"]["rule"] == "first-owner"
        assert len(meta["drops"]) >= 8
        assert meta["totals"]["users"] > 30


@pytest.mark.slow
def test_a_path_is_found_from_where_the_caller_is(session, small, tmp_path, monkeypatch):
    """Not from where Spark's Java began, as it stays there."""
    name = mixed(tmp_path, 30).name
    monkeypatch.chdir(tmp_path)
    both(open_source([name]), tmp_path)


@pytest.mark.slow
def test_a_store_appended_to_goes_on_with_known_users(session, small, tmp_path):
    every = rows(40)
    halves = [
        open_source([str(write_jsonl(tmp_path / f"{n}.jsonl", part))])
        for n, part in enumerate((every[: len(every) // 2], every[len(every) // 2 :]))
    ]
    stores = []
    for engine in ("duckdb", "spark"):
        made(halves[0], tmp_path / engine, "duckdb")
        append_records(halves[1], tmp_path / engine, engine=engine)
        stores.append(UserStore.open(tmp_path / engine))
    assert stores[0].meta.content_sha256 == stores[1].meta.content_sha256
    assert view(stores[0]) == view(stores[1])
    assert verify_store(tmp_path / "spark").ok


@pytest.mark.slow
def test_real_records_give_the_same_store(session, tmp_path):
    for name in ("shakespeare", "commits"):
        source = REAL_DATA / f"{name}.jsonl.gz"
        if not source.exists():
            pytest.skip(f"{source.name} is not beside the repository")
        made_by = [made(open_source([str(source)]), tmp_path / f"{name}-{e}", e, seq_len=128)
                   for e in ("duckdb", "spark")]  # fmt: skip
        assert made_by[0] == made_by[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [("_ORDER", ("user", "text")), ("_ORDER", ("text",)), ("_BY", ("place",))]
)
def test_twin_records_that_come_otherwise_give_another_store(
    session, small, tmp_path, monkeypatch, broken
):
    """By text within a user; users apart; a user's records in several parts."""
    source = open_source([str(mixed(tmp_path))])
    expected = made(source, tmp_path / "duckdb", "duckdb")["content_sha256"]
    monkeypatch.setattr(job, *broken)
    assert made(source, tmp_path / "spark", "spark")["content_sha256"] != expected


@pytest.mark.slow
def test_twin_a_file_that_is_lost_breaks_the_books(session, small, tmp_path, monkeypatch):
    """Its records are counted as read, and stored nowhere."""
    source = open_source([str(mixed(tmp_path))])

    read = job.SparkJob.read

    def losing(self, table, tally):
        read(self, table, tally)
        self.files[len(self.files) // 2].unlink()

    monkeypatch.setattr(job.SparkJob, "read", losing)
    with pytest.raises(FailureError, match="books do not balance"):
        made(source, tmp_path / "store", "spark")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_what_is_wrong_is_told_in_the_same_words(session, small, tmp_path):
    """The first that is wrong in the order of the source, whichever task found out first."""
    fine = write_jsonl(tmp_path / "fine.jsonl", rows(30))
    other = write_jsonl(tmp_path / "other.jsonl", [{"author": "a", "body": "b"}] * 40)
    lists = write_jsonl(tmp_path / "lists.jsonl", [[1]] * 40)
    short = tmp_path / "short.jsonl.gz"
    short.write_bytes(gzip.compress(fine.read_bytes())[:-9])
    binary = tmp_path / "binary.jsonl"
    binary.write_bytes(b"\0" * 3000)
    nothing = write_jsonl(tmp_path / "nothing.jsonl", [{"user": "a", "text": ""}])
    for wrong in ([other], [lists], [fine, short], [short, binary], [binary, short], [nothing]):
        said = []
        for engine in ("duckdb", "spark"):
            with pytest.raises(UseError) as refused:
                made(open_source([*map(str, wrong)], kind="jsonl"), tmp_path / "store", engine)
            said.append((refused.value.message, refused.value.hint))
            assert not (tmp_path / "store").exists()
            assert not list(tmp_path.glob(".*"))
        assert said[0] == said[1]


@pytest.mark.slow
def test_a_tokenizer_that_cannot_encode_is_told_of_by_the_task(session, small, tmp_path):
    content = json.dumps(
        {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0},
         "unk_token": "<unk>"}}
    )  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(content)
    source = open_source([str(mixed(tmp_path))])
    for engine in ("duckdb", "spark"):
        words = StoreTokenizer.load(tmp_path / "tokenizer.json")
        with pytest.raises(UseError, match="cannot encode"):
            prepare_store(source, tmp_path / "store", tokenizer=words, engine=engine)


@pytest.mark.slow
def test_the_store_may_lie_where_spark_sees_a_pattern(session, small, tmp_path):
    source = open_source([str(mixed(tmp_path))])
    expected = made(source, tmp_path / "duckdb", "duckdb")
    assert made(source, tmp_path / "a %20 [s]tore{1}*?", "spark") == expected


@pytest.mark.slow
def test_a_spark_that_fails_leaves_no_store(session, tmp_path, monkeypatch):
    source = open_source([str(mixed(tmp_path))])
    monkeypatch.setattr(job, "_ORDER", ("nothing",))
    with pytest.raises(FailureError, match="Spark failed"):
        made(source, tmp_path / "store", "spark")
    assert [path.name for path in tmp_path.iterdir()] == ["mixed"]


def test_a_path_that_spark_cannot_read_is_refused(tmp_path):
    with pytest.raises(UseError, match="may not have a colon"):
        job.SparkJob(tmp_path / "a:b")


def test_without_java_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UseError, match="needs Java"):
        job.SparkJob(tmp_path)
