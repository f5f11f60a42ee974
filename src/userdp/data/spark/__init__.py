"""Prepare a store with Apache Spark: what one process does otherwise, on many machines.

Two jobs. The first reads the source, a piece of a file per task, into working files of records. The
second brings each user's records together, and one task per partition of users tokenizes, cuts,
hashes and writes them as a part of the store. This process reads neither text
nor tokens: it adds up books, and takes the parts' indices over.

A task that fails, or whose process is killed, is tried again by Spark, and writes the same; nothing
of a job counts until `StoreWriter.finish`.

``session`` starts Spark; ``job`` is all else.
"""

from userdp.data.spark.job import SparkJob

__all__ = ["SparkJob"]
