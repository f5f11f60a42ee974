"""The rows as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.audit_study.setting import LONG_STEPS, PLAIN
from benchmarks.broken_runs import BROKEN
from papers.studies.runs import Row


def tables(rows: list[Row]) -> str:
    """The results as Markdown."""
    out = ["| text | algorithm | claimed ε | canaries: ε ≥ (could prove) | steps: ε ≥ (catches) "]
    out[0] += "| flagged |"
    out.append("|---|---|---|---|---|---|")
    right = [row for row in rows if row["key"]["run"] == "right"]
    for row in right:
        key = row["key"]
        long = f" ({LONG_STEPS} steps)" if key["n"] == "long" else ""
        out.append(
            f"| {key['text']} | {key['algorithm']}{long} | {row['claimed']:.4f} "
            f"| {row['canaries_lower']:.2f} ({row['canaries_most_detectable']:.2f}) "
            f"| {row['steps_lower']:.4f} ({row['steps_least_detectable']:.4f}) "
            f"| {', '.join(row['flagged']) or 'nothing'} |"
        )
    below = [max(row["canaries_lower"], row["steps_lower"]) < row["claimed"] for row in right]
    out += ["", f"Lower bound below the claim in {sum(below)} of {len(below)} right runs.", ""]
    out += ["| text | broken | claimed ε | canaries: ε ≥ (could prove) | steps: ε ≥ | flagged |"]
    out.append("|---|---|---|---|---|---|")
    for row in rows:
        if row["key"]["run"] in BROKEN:
            out.append(
                f"| {row['key']['text']} | {row['key']['run']} | {row['claimed']:.4f} "
                f"| {row['canaries_lower']:.2f} ({row['canaries_most_detectable']:.2f}) "
                f"| {row['steps_lower']:.4f} | {', '.join(row['flagged']) or 'NOTHING'} |"
            )
    out += ["", "| text | run | members / others | AUC (95%) | found at 1% false alarms "]
    out[-1] += "| AUC against references (95%) | found | held-out gain, nats a token |"
    out.append("|---|---|---|---|---|---|---|---:|")
    for row in rows:
        if "inference" in row:
            found = row["inference"]
            better = row.get("references")
            out.append(
                f"| {row['key']['text']} | {attacked_run(row)} "
                f"| {found['members']} / {found['others']} | {area_in_words(found)} "
                f"| {found['tpr_at_low_fpr']:.1%} "
                + (f"| {area_in_words(better)} " if better else "| – ")
                + (f"| {better['tpr_at_low_fpr']:.1%} " if better else "| – ")
                + (f"| {row['held_out_gain']:.3f} |" if "held_out_gain" in row else "| – |")
            )
    return "\n".join(out)


def attacked_run(row: Row) -> str:
    """What was attacked, in words."""
    key = row["key"]
    if "claimed" in row:
        return f"ULS, ε = {row['claimed']:.4f}"
    return f"{PLAIN}, {key['n'] if key['run'] == PLAIN and 'n' in key else f'{LONG_STEPS} steps'}"


def area_in_words(found: dict[str, Any]) -> str:
    return f"{found['auc']:.3f} ({found['auc_low']:.3f} to {found['auc_high']:.3f})"
