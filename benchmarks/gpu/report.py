"""The document as tables, and both written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.gpu.setting import Result


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


def markdown(document: Result) -> str:
    """Every part that has run, table by table, and what has not."""
    lines = [f"# On {document['device']}, torch {document['torch']}", ""]
    lines += [f"`python -m benchmarks.gpu`, {document.get('date', 'undated')}.", ""]
    if document["tiny"]:
        lines += ["Tiny models: this shows that the code runs, and no time.", ""]
    parts: dict[str, Result] = document["parts"]
    for date in sorted({part["date"] for part in parts.values() if "date" in part}):
        if date != document.get("date"):
            names = ", ".join(name for name, part in parts.items() if part.get("date") == date)
            lines += [f"Of {date}, by the code of that day: {names}.", ""]
    for title, names, columns, make in TABLES:
        found = [
            (name, row)
            for name, part in parts.items()
            if name.split("_")[0] in names
            for row in part.get("rows", [])
        ]
        if found:
            lines += [f"## {title}", "", _line(columns), _line(["---"] * len(columns))]
            lines += [_line(cells) for name, row in found for cells in make(name, row)]
            lines.append("")
    lines += list(_training(parts.get("training", {})))
    if "seconds" in (noise := parts.get("noise", {})):
        lines += [f"Noise over {noise['numbers']:,} numbers: {noise['seconds']:.3f} s."]
        lines += [
            f"Deviation {row['deviation']:g}: the lattice attack gains {row['lattice_errors']:.2f} "
            f"standard errors (float32 noise: {row['float32_errors']:.1f}), variance "
            f"{row['variance']:.4f} of what it should be, p = {row['p_value']:.2g}."
            for row in noise["rows"]
        ]
        lines.append("")
    for name, part in parts.items():
        if part.get("skipped"):
            lines += [f"{name}: no time left for {'; '.join(part['skipped'])}.", ""]
        if part.get("absent"):
            lines += [f"{name}: not run: {'; '.join(part['absent'])}.", ""]
        if "error" in part:
            lines += [f"{name} did not run: {part['error']}", ""]
    return "\n".join(lines)


Cells = Iterable[list[str]]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _exact(name: str, row: Result) -> Cells:
    verdict = "passed" if row["passed"] else "FAILED"
    cells = [name, row["model"], row["engine"], f"{row['norm_error']:.1e}"]
    yield [*cells, f"{row['largest_move']:.5f}", verdict]


def _ratios(name: str, row: Result) -> Cells:
    memory = row["peak_memory_bytes"]
    for method, seconds in row["seconds"].items():
        spread = f"[{row['ratio_least'][method]:.3f}, {row['ratio_most'][method]:.3f}]"
        peak = f"{memory[method] / 2**30:.2f} GiB" if method in memory else "–"
        about = [name, row["precision"], str(row["group_size"]), str(row["sequences"]), method]
        took = f"{seconds:.4f}"
        compiled = row.get("ratio_to_compiled", {}).get(method)
        yield [
            *about,
            took,
            f"{row['ratio'][method]:.3f} {spread}",
            "" if compiled is None else f"{compiled:.3f}",
            peak,
            str(row["rounds"]),
        ]


def _memory(name: str, row: Result) -> Cells:
    unit = "sequences" if row["searched"] == "batch" else "layers"
    fails = "cap reached" if row["capped"] else f"fails at {row['fails_at'] or 'no size tried'}"
    each = row.get("seconds_per_sequence")
    yield [
        name,
        row["method"],
        f"{row['largest']} {unit}",
        fails if row["settled"] else f"{fails}, search cut short",
        f"{row.get('parameters', 0) / 1e6:,.0f} M",
        str(row.get("rows_per_pass", "–")),
        "–" if each is None else f"{each:.5f}",
    ]


def _reads(name: str, row: Result) -> Cells:
    yield [row["engine"], *map(str, row["waits"].values()), f"{row['per_layer']:g}"]


def _products(name: str, row: Result) -> Cells:
    shape = f"{row['units']} x {row['positions']} x ({row['p']}, {row['q']})"
    if "absent" in row:
        yield [shape, row["way"], row["absent"].replace("|", "/"), ""]
    else:
        yield [shape, row["way"], f"{row['seconds']:.6f}", f"{row['error']:.1e}"]


def _forms(name: str, row: Result) -> Cells:
    yield [
        f"({row['p']}, {row['q']})",
        str(row["positions"]),
        f"{row['compared']:.1f}",
        f"{row['seconds_formed']:.6f}",
        f"{row['seconds_ghost']:.6f}",
        f"{row['ghost_to_formed']:.2f}",
    ]


def _commands(name: str, row: Result) -> Cells:
    cpu, apart = row.get("seconds_cpu"), row.get("difference")
    yield [
        row["command"],
        f"{row['seconds']:.2f}",
        "–" if cpu is None else f"{cpu:.2f}",
        "–" if apart is None else f"{apart:.1e}",
        "passed" if row["passed"] else "FAILED",
    ]


def _training(part: Result) -> Iterable[str]:
    if "checks" not in part:
        return
    yield f"A run of {part['steps']} steps by {part['entry']}, on {part['machine']}:"
    yield f"epsilon {part['epsilon']:.4f}, {part['seconds_per_step']:.3f} s a step."
    for check, holds in part["checks"].items():
        yield f"{'passed' if holds else 'FAILED'}: {check}."
    yield ""


Table = tuple[str, tuple[str, ...], list[str], Callable[[str, Result], Cells]]
TABLES: tuple[Table, ...] = (
    (
        "Exactness",
        ("exact",),
        ["part", "model", "engine", "norm error", "largest move / C", ""],
        _exact,
    ),
    (
        "Time",
        ("decoder", "lora", "sharded", "k", "compiled", "passes"),
        [
            "part",
            "precision",
            "G or k",
            "sequences",
            "method",
            "seconds",
            "ratio to plain",
            "to plain compiled",
            "peak memory",
            "rounds",
        ],
        _ratios,
    ),
    (
        "Commands",
        ("commands",),
        ["command", "seconds", "seconds on the CPU", "largest relative difference", ""],
        _commands,
    ),
    (
        "What fits",
        ("memory",),
        ["part", "method", "largest", "", "parameters", "rows of a pass", "seconds a sequence"],
        _memory,
    ),
    (
        "Waits for the device in a step",
        ("reads",),
        ["engine", "2 layers", "4 layers", "added by a layer"],
        _reads,
    ),
    (
        "Per-unit gradients from bfloat16",
        ("products",),
        ["units x positions x sides", "way", "seconds", "relative error"],
        _products,
    ),
    (
        "Formed gradients and Gram matrices",
        ("forms",),
        ["sides", "positions", "compared with the constant", "formed", "Gram", "Gram / formed"],
        _forms,
    ),
)
