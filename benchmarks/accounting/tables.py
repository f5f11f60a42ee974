"""The figures as tables on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.accounting.libraries import Row


def show(summary: Row) -> None:
    """Tables on stderr."""
    console = Console(stderr=True, width=150)
    table = Table(title="epsilon: dp-accounting and userdp")
    for heading in ("setting", "dp-accounting", "time", "userdp (upper)", "time", "speed-up", "ok"):
        table.add_column(heading, no_wrap=True)
    for row in summary["comparison"]:
        theirs, mine = row["dp_accounting"], row["ours"]
        ratio = f"{row['speedup']:.0f}" if "speedup" in row else "-"
        verdict = {True: "yes", False: "NO", None: "-"}[row.get("consistent")]
        cells = (_cell(theirs, "epsilon"), _time(theirs), _cell(mine, "upper"), _time(mine))
        table.add_row(row["setting"], *cells, ratio, verdict)
    console.print(table)
    table = Table(title="calibration of the noise multiplier")
    for heading in ("setting", "epsilon", "dp-accounting", "time", "userdp", "time", "speed-up"):
        table.add_column(heading, no_wrap=True)
    for row in summary["calibration"]:
        theirs, mine = row["dp_accounting"], row["ours"]
        ratio = f"{row['speedup']:.0f}" if "speedup" in row else "-"
        cells = (_cell(theirs, "sigma"), _time(theirs), _cell(mine, "sigma"), _time(mine))
        table.add_row(row["setting"], f"{row['epsilon']:g}", *cells, ratio)
    console.print(table)
    for slow in summary["own_slowest"]:
        console.print(f"slow: {slow['ms']:9.1f} ms  {slow['setting']}")
    for key, value in summary.items():
        if key not in ("comparison", "calibration", "own_slowest"):
            console.print(f"{key}: {value}")


def _cell(row: Row, *names: str) -> str:
    if "capped" in row:
        return f"> {row['seconds']:.0f} s"
    if "error" in row:
        return str(row["error"]).split(":")[0]
    if "diverged" in row:
        return str(row["diverged"])
    for name in names:
        if name in row:
            return f"{row[name]:.9g}"
    return "-"


def _time(row: Row) -> str:
    if "cpu_seconds" not in row:
        return "-"
    used = row["cpu_seconds"]
    return f"{used:.3g} s" if used >= 1 else f"{1e3 * used:.3g} ms"
