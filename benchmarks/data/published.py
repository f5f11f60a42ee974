"""Dataset Grouper and bare Apache Beam as they are published, in an interpreter of their own.

Dataset Grouper (what Charles et al. 2024 prepared their data with):
`beam_transforms.to_keyed_sequence_examples` (key, serialize, combine per key) on Beam's local
runner, from JSON Lines into its own TFRecord files. Bare Beam is the same without its
serialization: GroupByKey and a JSON line per user.

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
from pathlib import Path
from typing import Any

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


def outside(program: str, corpus: Path, out: Path) -> dict[str, Any]:
    """What the program printed, or why it failed."""
    python = os.environ.get("BEAM_PYTHON", sys.executable)
    command = [python, "-c", program, str(corpus), str(out)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
