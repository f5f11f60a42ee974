"""A prediction of the cost model was made before its measurement, and was not changed afterwards.

Both files are in the repository, and the test reads both.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks.cost import __main__ as cost
from benchmarks.cost.settings import FITTED, HELD
from benchmarks.cost.standing import PREDICTED, require_unmeasured, standing
from benchmarks.faults.planted import ROOT
from benchmarks.paper_size import __main__ as paper_size
from benchmarks.paper_size.held import Measured, held
from benchmarks.paper_size.settings import MEASURED, setting_of
from benchmarks.rows import whole_rows
from userdp.codec import digest
from userdp.errors import UseError

TRIAL = setting_of("trial")


def predicted(**changes) -> dict:
    """A prediction of the trial setting."""
    row = {"setting": "trial", "ratio": 1.25, "from": {"setting": digest(TRIAL)}}
    return {**row, "date": "2026-01-01T10:00:00+00:00", **changes}


def measured(prediction: dict | None, **changes) -> dict:
    """A round of the trial setting that notes this prediction."""
    noted = None if prediction is None else sha256(prediction)
    row = {"setting": "trial", "seconds": {}, "prediction": noted}
    return {**row, "date": "2026-01-01T10:00:01+00:00", **changes}


def sha256(row: dict) -> str:
    """What `Standing.digest` must be, by the standard library alone."""
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def broken_promises(predictions: list[dict], measurements: list[dict]) -> list[str]:
    """What is wrong with the order of predictions and measurements, in words."""
    wrong = []
    keys = [row["setting"] for row in predictions]
    wrong += [f"{key} is predicted twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    for row in measurements:
        of_key = [one for one in predictions if one["setting"] == row["setting"]]
        if row["prediction"] is None:
            if of_key or row["setting"] in {setting.key for setting in HELD}:
                wrong.append(f"{row['setting']} has a prediction that its measurement passes over")
        elif not of_key:
            wrong.append(f"no prediction of {row['setting']} stands")
        elif row["prediction"] != sha256(of_key[0]):
            wrong.append(f"the prediction of {row['setting']} was changed after the measurement")
        elif not datetime.fromisoformat(of_key[0]["date"]) < datetime.fromisoformat(row["date"]):
            wrong.append(f"{row['setting']} was measured before it was predicted")
        elif of_key[0]["from"]["setting"] != digest(setting_of(row["setting"])):
            wrong.append(f"the prediction of {row['setting']} is of another setting")
    return wrong


def test_every_measurement_at_paper_size_was_predicted_before_and_the_prediction_still_stands():
    predictions = list(whole_rows(ROOT / PREDICTED))
    assert broken_promises(predictions, list(whole_rows(ROOT / MEASURED))) == []


def test_every_setting_that_is_held_against_the_model_has_a_prediction_that_stands():
    predictions = list(whole_rows(ROOT / PREDICTED))
    assert [standing(one, predictions).row["setting"] for one in HELD] == [s.key for s in HELD]


def test_no_rate_is_fitted_to_a_setting_that_is_held_against_the_model():
    assert not {one.shape for one in HELD} & {one.shape for one in FITTED}


@pytest.mark.parametrize(
    ("predictions", "measurement", "promise"),
    [
        ([predicted()], measured(predicted()), None),
        ([], measured(None), None),
        ([predicted(ratio=1.3)], measured(predicted()), "changed after"),
        ([predicted(date="2026-01-01T09:00:00+00:00")], measured(predicted()), "changed after"),
        (
            [predicted(date="2026-01-01T10:00:02+00:00")],
            measured(predicted(date="2026-01-01T10:00:02+00:00")),
            "before it was predicted",
        ),
        ([], measured(predicted()), "no prediction"),
        ([predicted()], measured(None), "passes over"),
        ([], measured(None, setting=HELD[0].key), "passes over"),
        ([predicted(), predicted(ratio=1.3)], measured(predicted()), "twice"),
        (
            [predicted(**{"from": {"setting": digest(setting_of("trial_lora"))}})],
            measured(predicted(**{"from": {"setting": digest(setting_of("trial_lora"))}})),
            "another setting",
        ),
    ],
    ids=[
        "in order",
        "never predicted, as it says",
        "figure changed",
        "date changed",
        "predicted after",
        "removed",
        "passed over",
        "held setting passed over",
        "a second one",
        "of another setting",
    ],
)
def test_a_promise_that_is_broken_is_named(predictions, measurement, promise):
    wrong = broken_promises(predictions, [measurement])
    assert wrong == [] if promise is None else any(promise in words for words in wrong)


def test_the_digest_that_a_measurement_notes_is_of_the_whole_row_of_the_prediction():
    assert standing(TRIAL, [predicted()]).digest == sha256(predicted())


@pytest.mark.parametrize(
    ("predictions", "words"),
    [
        ([], "no prediction of trial"),
        ([predicted(setting="trial_lora")], "no prediction of trial"),
        ([predicted(), predicted()], "2 predictions of trial"),
        ([predicted(**{"from": {"setting": "of another shape"}})], "another model"),
    ],
)
def test_a_prediction_stands_only_alone_and_of_the_very_setting(predictions, words):
    with pytest.raises(UseError, match=words):
        standing(TRIAL, predictions)


@pytest.fixture
def somewhere(tmp_path, monkeypatch) -> Path:
    """A working folder without results."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_not_predicted_is_not_measured_and_nothing_is_written(
    somewhere, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["paper_size", "--only", "trial", "--page", "page.md"])
    with pytest.raises(SystemExit):
        paper_size.main()
    assert "no prediction of trial stands" in capsys.readouterr().err
    assert list(somewhere.iterdir()) == []


def test_what_was_measured_is_not_predicted(somewhere, monkeypatch):
    MEASURED.parent.mkdir(parents=True)
    MEASURED.write_text(json.dumps({"setting": "lora_small"}) + "\n")
    monkeypatch.setattr(sys, "argv", ["cost", "predict", "--only", "lora_small"])
    with pytest.raises(SystemExit):
        cost.main()
    assert not PREDICTED.exists()
    with pytest.raises(UseError, match="lora_small has been measured"):
        require_unmeasured(setting_of("lora_small"), MEASURED)


@pytest.mark.parametrize(
    ("ratio", "private", "near"),
    [
        (1.229, 219, "ratio: yes; memory: yes"),
        (1.281, 219, "ratio: no; memory: yes"),
        (1.219, 219, "ratio: no; memory: yes"),
        (1.25, 221, "ratio: yes; memory: no"),
        (1.25, 179, "ratio: yes; memory: no"),
    ],
)
def test_the_page_says_whether_a_prediction_came_near(ratio, private, near):
    peaks = {"plain": 100, "private": private}
    row = predicted(seconds_plain=1.0, bytes_plain=100, bytes_private=200)
    told = held([Measured(setting=TRIAL, seconds=1.0, ratio=ratio, peaks=peaks)], {"trial": row})
    assert near in told


@pytest.mark.slow
def test_each_row_of_a_measurement_notes_its_date_and_that_nothing_was_predicted(tmp_path):
    rows, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.paper_size", "--only", "trial", "--unpredicted"]
    command += ["--rounds", "2", "--results", str(rows), "--page", str(page)]
    subprocess.run(command, check=True, cwd=ROOT)
    found = list(whole_rows(rows))
    assert ["peak" in row for row in found] == [True, False, False]
    assert all(row["prediction"] is None and row["source"] for row in found)
    dates = [datetime.fromisoformat(row["date"]) for row in found]
    assert dates == sorted(dates)
    assert "trial" not in page.read_text()  # no setting of the page
