"""Records by user: ours beside Dataset Grouper, and beside bare Apache Beam, on the same file.

The part ``grouper`` of `benchmarks.data`. Dataset Grouper (what Charles et al. 2024 prepared their
data with) is run as it is published: its `beam_transforms.to_keyed_sequence_examples` (key,
serialize, combine per key) on Beam's local runner, from the same JSON Lines into its own TFRecord
files. Bare Beam is the same without its serialization: GroupByKey and a JSON line per user, which
is what ours writes too, so these two are compared line by line.

Both pin other versions of libraries than ours, so they live in an environment of their own, whose
interpreter is named in ``BEAM_PYTHON``::

    pip install apache-beam google-crc32c dataset-grouper \\
        "tensorflow-datasets==4.9.2" "tensorflow-metadata<1.15"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BEAM = """
import json, sys, time
import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
began = time.perf_counter()
with beam.Pipeline(runner="DirectRunner", options=PipelineOptions([])) as p:
    (p | beam.io.ReadFromText(sys.argv[1]) | beam.Map(json.loads)
       | beam.Map(lambda r: (r["user"], r["text"])) | beam.GroupByKey()
       | beam.Map(lambda kv: json.dumps([kv[0], list(kv[1])]))
       | beam.io.WriteToText(sys.argv[2], num_shards=4))
print(json.dumps({"seconds": time.perf_counter() - began, "version": beam.__version__}))
"""

DATASET_GROUPER = """
import importlib.metadata, json, sys, time
import apache_beam as beam
import tensorflow as tf
import tensorflow_datasets as tfds
from apache_beam.options.pipeline_options import PipelineOptions
from dataset_grouper import beam_transforms

def example(line):
    return {name: tf.constant(value) for name, value in json.loads(line).items()}

text = tfds.features.Text()
features = tfds.features.FeaturesDict({"user": text, "text": text})
began = time.perf_counter()
with beam.Pipeline(runner="DirectRunner", options=PipelineOptions([])) as p:
    examples = p | beam.io.ReadFromText(sys.argv[1]) | beam.Map(example)
    keyed = beam_transforms.to_keyed_sequence_examples(
        examples, lambda e: e["user"].numpy(), features)
    keyed | beam.Map(lambda pair: pair[1]) | beam.io.tfrecordio.WriteToTFRecord(
        sys.argv[2], coder=beam.coders.ProtoCoder(tf.train.SequenceExample), num_shards=4)
print(json.dumps({"seconds": time.perf_counter() - began,
                  "version": importlib.metadata.version("dataset-grouper")}))
"""

Child = Callable[..., dict[str, Any]]


def compare(
    folder: Path, corpus: Path, few: Path, records: int, few_records: int, child: Child
) -> dict[str, Any]:
    """Seconds of the three, and their ratios.

    Args:
        folder: for what they write.
        corpus: for ours and Beam.
        few: a smaller file for ours and Dataset Grouper, which takes milliseconds per record.
        records: in ``corpus``.
        few_records: in ``few``.
        child: runs a part of `benchmarks.data` in its own process.
    """
    result: dict[str, Any] = {"records": records, "few_records": few_records}
    ours, beam = [], []
    for _ in range(3):  # in turn, so that neighbours on the machine meet both
        ours.append(child("--group", str(corpus), str(folder / "ours"))["seconds"])
        beam.append(_outside(BEAM, corpus, folder / "beam"))
    result["ours_seconds"] = ours
    if failed := _failures(beam):
        result["beam_failed"] = failed
    else:
        result["beam_seconds"] = [run["seconds"] for run in beam]
        result["beam_version"] = beam[0]["version"]
        result["same_groups"] = groups([folder / "ours"]) == groups(sorted(folder.glob("beam-*")))
        result["ratio_beam_over_ours"] = _ratio(result["beam_seconds"], ours)
    ours, grouper = [], []
    for _ in range(2):
        ours.append(child("--group", str(few), str(folder / "few"))["seconds"])
        grouper.append(_outside(DATASET_GROUPER, few, folder / "grouper"))
    result["ours_few_seconds"] = ours
    if failed := _failures(grouper):
        result["dataset_grouper_failed"] = failed
    else:
        result["dataset_grouper_seconds"] = [run["seconds"] for run in grouper]
        result["dataset_grouper_version"] = grouper[0]["version"]
        result["ratio_dataset_grouper_over_ours"] = _ratio(result["dataset_grouper_seconds"], ours)
    return result


def describe(result: dict[str, Any]) -> Iterator[str]:
    """Lines for people."""
    for name, library, records, ours in (
        ("beam", "Beam", result["records"], result["ours_seconds"]),
        ("dataset_grouper", "Dataset Grouper", result["few_records"], result["ours_few_seconds"]),
    ):
        if f"{name}_failed" in result:
            yield f"{library} did not run: {result[f'{name}_failed']}"
            continue
        theirs = np.median(result[f"{name}_seconds"])
        yield (
            f"grouping {records:,} records: ours {np.median(ours):.2f} s, "
            f"{library} {theirs:.1f} s, ratio {result[f'ratio_{name}_over_ours']:.1f}"
        )


def _outside(program: str, corpus: Path, out: Path) -> dict[str, Any]:
    python = os.environ.get("BEAM_PYTHON", sys.executable)
    command = [python, "-c", program, str(corpus), str(out)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _failures(runs: list[dict[str, Any]]) -> str | None:
    return next((run["failed"] for run in runs if "failed" in run), None)


def _ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over neighbouring runs."""
    return float(np.median([a / b for a, b in zip(theirs, ours, strict=True)]))


def groups(files: list[Path]) -> dict[str, list[str]]:
    """Each user's texts, in no order, from files of JSON lines."""
    lines = (line for file in files for line in file.open())
    return {user: sorted(texts) for user, texts in map(json.loads, lines)}


def group_child(path: str, out: str) -> None:
    """Read, group and write a JSON line per user, as Beam does; with each user's records in order.

    What `prepare` runs up to the tokenizer, and a writer of lines that works on columns too.
    """
    from userdp.data.grouping import Grouping
    from userdp.data.progress import NoProgress
    from userdp.data.records import Tally
    from userdp.data.sources import open_source

    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(dir=Path(out).parent) as scratch,
        Grouping(Path(scratch)) as grouping,
        Path(out).open("wb") as sink,
    ):
        source: Any = open_source([path])
        read = time.perf_counter()
        grouping.add(source.blocks(Tally(), NoProgress()))
        added = time.perf_counter()
        grouping.sort()
        ordered = time.perf_counter()
        write_groups(grouping.batches(records=2**15), sink)
    stages = {"reading": added - read, "sorting": ordered - added,
              "fetching and writing": time.perf_counter() - ordered}  # fmt: skip
    print(json.dumps({"seconds": time.perf_counter() - began, "stages": stages}))


def write_groups(blocks: Iterator[Any], sink: Any) -> None:
    """``["user", ["text", ...]]`` per line, from blocks of records ordered by user."""
    from userdp.data.ahead import ahead

    last: list[bytes] = []

    def with_last() -> Iterator[tuple[Any, bytes | None]]:
        for block in blocks:
            yield block, last[-1] if last else None
            last[:] = [block.users[-1].as_py()]

    for _, content in ahead(lines_of, with_last()):
        sink.write(content)
    if last:
        sink.write(b'"]]\n')


def lines_of(block_and_last: tuple[Any, bytes | None]) -> Any:
    """A block of lines; the last is left open, as its user may go on in the next block."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from userdp.data.columns import bytes_of, offsets_of

    def plain(text: str) -> Any:
        return pa.scalar(text, pa.large_string())

    block, last = block_and_last
    users = block.users
    other = pc.not_equal(users.slice(1), users.slice(0, len(users) - 1))
    first = np.array([last is None or users[0].as_py() != last])
    begins = np.concatenate([first, other.to_numpy(zero_copy_only=False)])
    names = escaped(users.filter(pa.array(begins)))
    heads = pc.binary_join_element_wise(plain('"]]\n["'), names, plain('",["'), plain(""))
    before = pa.concat_arrays([pa.array(['","'], pa.large_string()), heads])
    before = before.take(pa.array(np.cumsum(begins) * begins))
    texts = pc.binary_join_element_wise(before, escaped(block.texts), plain(""))
    ends = offsets_of(texts)
    begin = int(ends[0]) + (4 if last is None else 0)  # nothing is open before the first
    return bytes_of(texts)[begin : ends[-1]].data


def escaped(values: Any) -> Any:
    """What stands between the quotes of each value as a JSON string."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from userdp.data.columns import bytes_of, offsets_of

    texts = values.cast(pa.large_string())
    ends = offsets_of(values)
    held = bytes_of(values)[ends[0] : ends[-1]]
    if not len(held):
        return texts
    characters = [c for c in '\\"' if (held == ord(c)).any()]
    if held.min() < ord(" "):
        characters += map(chr, np.unique(held[held < ord(" ")]).tolist())
    for character in characters:  # the backslash first
        texts = pc.replace_substring(texts, character, json.dumps(character)[1:-1])
    return texts
