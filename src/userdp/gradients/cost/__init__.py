"""Predict time, memory and money of a step, plain and private, without the machine meant."""

from userdp.gradients.cost.counting import PLAIN, Count, StepCount, Work, count_step, step_of
from userdp.gradients.cost.forecast import Forecast, Forecaster
from userdp.gradients.cost.hardware import CPU, TABLE, Hardware, Rates, hardware_of
from userdp.gradients.cost.prediction import seconds_of
from userdp.gradients.cost.recording import Op, Recorder

__all__ = [
    "CPU",
    "PLAIN",
    "TABLE",
    "Count",
    "Forecast",
    "Forecaster",
    "Hardware",
    "Op",
    "Rates",
    "Recorder",
    "StepCount",
    "Work",
    "count_step",
    "hardware_of",
    "seconds_of",
    "step_of",
]
