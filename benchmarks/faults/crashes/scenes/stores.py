"""Scenes around a store: preparing it, adding to it, planning with it, erasing a person from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.faults.crashes.scenes.base import (
    POPULATION,
    Scene,
    must,
    prepare,
    train,
    userdp,
    write_people,
)

_SMALL_SEGMENTS = 400
"""Tokens of a segment, so that tiny stores have several."""


class Prepare(Scene):
    """``userdp prepare`` of a new store, in a folder with nothing else."""

    name = "prepare"

    def make(self, folder: Path) -> None:
        write_people(folder / "in.jsonl", users=60)
        (folder / "place").mkdir()

    def act(self, folder: Path) -> int:
        out = folder / "place" / "store"
        if out.exists():
            return 0
        cut_small()
        return userdp("prepare", folder / "in.jsonl", "--out", out, "--seq-len", 8)

    def check(self, folder: Path) -> list[str]:
        return verified(folder / "place" / "store")

    def problems(self, folder: Path) -> list[str]:
        there = sorted(path.name for path in (folder / "place").iterdir())
        return [] if there == ["store"] else [f"beside the store there are {there}"]

    def result(self, folder: Path) -> str | None:
        return facts_of(folder / "place" / "store")


class Append(Scene):
    """``userdp prepare --append``: more people, and more of the same people."""

    name = "append"

    def make(self, folder: Path) -> None:
        write_people(folder / "in.jsonl", users=40)
        write_people(folder / "more.jsonl", users=60, seed=1, prefix="user0")
        (folder / "place").mkdir()
        cut_small()
        store = folder / "place" / "store"
        must(userdp("prepare", folder / "in.jsonl", "--out", store, "--seq-len", 8))

    def act(self, folder: Path) -> int:
        store = folder / "place" / "store"
        if meta_of(store)["generation"] == 1:
            return 0
        cut_small()
        return userdp("prepare", folder / "more.jsonl", "--out", store, "--append")

    def check(self, folder: Path) -> list[str]:
        return verified(folder / "place" / "store")

    def torn(self, folder: Path) -> list[str]:
        generation = meta_of(folder / "place" / "store")["generation"]
        return [] if generation in (0, 1) else [f"the store is of generation {generation}"]

    def problems(self, folder: Path) -> list[str]:
        there = sorted(path.name for path in (folder / "place").iterdir())
        problems = [] if there == ["store"] else [f"beside the store there are {there}"]
        scratch = folder / "place" / "store" / "scratch"
        return problems + (["working files were left in the store"] if scratch.exists() else [])

    def result(self, folder: Path) -> str | None:
        return facts_of(folder / "place" / "store")


class Plan(Scene):
    """``userdp store stats --epsilon``, and ``userdp plan`` from its answer."""

    name = "plan"

    def make(self, folder: Path) -> None:
        must(prepare(folder))
        from userdp.plans.norms import GradientNorms
        from userdp.plans.origin import Provenance

        GradientNorms(
            model="synthetic",
            users=128,
            user_norms={1: 1.1, 2: 0.8},
            example_norm=1.1,
            source=Provenance.PUBLIC,
        ).save(folder / "norms.json")

    def act(self, folder: Path) -> int:
        store, out = folder / "store", folder / "plan.json"
        if not answers_of(store) and (
            status := userdp("stats", store, "--epsilon", 1, "--ask", "median")
        ):
            return status
        if out.exists():
            return 0
        return userdp(
            "plan", store, "--norms", folder / "norms.json", "--epsilon", 8, "--budget", 8,
            "--steps", 5, "--population", POPULATION, "--delta", 1e-5, "--algorithm", "uls",
            "--out", out,
        )  # fmt: skip

    def check(self, folder: Path) -> list[str]:
        from userdp.claims import claim
        from userdp.plans import Plan

        Plan.load(folder / "plan.json")
        asked = sum(line["kind"] == "query" for line in lines_of(folder / "store"))
        paid = claim(folder / "store").guarantee.epsilon
        return [] if paid >= asked else [f"the store claims {paid} for {asked} answers of 1 each"]

    def torn(self, folder: Path) -> list[str]:
        charged: set[str] = set()
        for line in lines_of(folder / "store"):
            if line["kind"] == "query":
                charged.add(line["run_id"])
            elif line["kind"] == "answer" and line["run_id"] not in charged:
                return ["an answer was drawn that was not charged before"]
        return []

    def problems(self, folder: Path) -> list[str]:
        there = {path.name for path in folder.iterdir()}
        odd = there - {"norms.json", "plan.json", "store", "tokenizer.json"}
        return [f"{name} was left beside the plan" for name in sorted(odd)]


class Forget(Scene):
    """``userdp store forget`` of a person of whom a private run and one without privacy learned."""

    name = "forget"
    _USER, _TEXT = "the-person-who-leaves", "w0 w17 w3 w29 w11 w23 w5"

    def make(self, folder: Path) -> None:
        must(prepare(folder))
        more = folder / "more.jsonl"
        rows = [{"user": self._USER, "text": self._TEXT}] * 3
        more.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        must(userdp("prepare", more, "--out", folder / "store", "--append"))
        more.unlink()
        must(train(folder))
        must(
            userdp(
                "train", folder / "store", "--out", folder / "plain", "--privacy", "none",
                "--steps", 2, "--batch-size", 4, "--model", "new", "--layers", 1, "--width", 16,
                "--heads", 2, "--no-tensorboard",
            )
        )  # fmt: skip

    def act(self, folder: Path) -> int:
        from userdp.data.store import UserStore

        store = UserStore.open(folder / "store", fixed_graph=True)  # finishes what was decided
        if self._USER.encode() not in store.user_ids():
            return 0
        return userdp("forget", folder / "store", "--user", self._USER, "--yes")

    def check(self, folder: Path) -> list[str]:
        return verified(folder / "store")

    def problems(self, folder: Path) -> list[str]:
        mark = self._USER.encode()
        found = [path for path in folder.rglob("*") if path.is_file() and mark in path.read_bytes()]
        problems = [f"{path} names the person who was erased" for path in found]
        if list((folder / "plain").glob("model/*.safetensors")):
            problems.append("weights that learned from the person without privacy are there")
        return problems

    def result(self, folder: Path) -> str | None:
        return meta_of(folder / "store")["content_sha256"]


def cut_small() -> None:
    """Let stores that this process writes have small segments and small batches."""
    from userdp.data import grouping, writer
    from userdp.data import meta as layout

    # A constant, and defaults that were bound when the methods were made: neither is an option of
    # `userdp prepare`, and at their own sizes a store this small is one file.
    layout.SEGMENT_TOKENS = _SMALL_SEGMENTS
    for method in (writer.StoreWriter.create, writer.StoreWriter.append):
        method.__func__.__kwdefaults__["segment_tokens"] = _SMALL_SEGMENTS
    grouping._RECORDS_AT_ONCE = 16


def meta_of(store: Path) -> dict[str, Any]:
    """The facts about a store, read as JSON."""
    values: dict[str, Any] = json.loads((store / "meta.json").read_text("utf-8"))
    return values


def facts_of(store: Path) -> str:
    """What must not depend on kills: the content, and the books."""
    meta = meta_of(store)
    kept = ("content_sha256", "drops", "example_drops", "totals")
    return json.dumps({name: meta[name] for name in kept}, sort_keys=True)


def lines_of(store: Path) -> list[dict[str, Any]]:
    """Whole lines of a store's ledger."""
    path = store / "ledger.jsonl"
    if not path.exists():
        return []
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def answers_of(store: Path) -> list[dict[str, Any]]:
    """The DP answers in a store's ledger."""
    return [line for line in lines_of(store) if line["kind"] == "answer"]


def verified(store: Path) -> list[str]:
    """What `userdp verify` finds in every byte of a store."""
    from userdp.data.verify import verify_store

    return list(verify_store(store).problems)
