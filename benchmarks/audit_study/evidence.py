"""What is kept of an audit in a row."""

from __future__ import annotations

from typing import Any

from papers.studies.runs import Row


def evidence(extra: dict[str, Any], flagged: list[str]) -> Row:
    """What is kept of an extra run."""
    bound, steps = extra["bound"], extra["steps"]
    return {
        "canaries_lower": bound["epsilon_lower"],
        "canaries_most_detectable": bound["most_detectable"],
        "steps_lower": steps["epsilon_lower"],
        "steps_least_detectable": steps["detectable_epsilon"],
        "noise_ratio": steps["noise_ratio"],
        "worst_move": steps["worst_move"],
        "checks": {
            check["name"]: {key: check[key] for key in ("p_value", "seen", "power", "flagged")}
            for check in steps["checks"]
        },
        "flagged": flagged,
        "seconds": round(extra["seconds"], 1),
    }


def attack(found: dict[str, Any]) -> Row:
    """The attack's figures, its curve thinned."""
    values = dict(found)
    values["curve"] = [[round(x, 4) for x in point] for point in values["curve"][::2]]
    return values
