"""System identification: what a robot's joints are made of, from logs of it on a stand."""

from npmp.actuators.actuator_log import JointRecording, StandLog, read_stand_log, write_stand_log
from npmp.identification.estimation import IdentificationConfig, Identified, Prior, identify
from npmp.identification.excitation import (
    ExcitationConfig,
    drawn,
    excitation,
    simulated,
    write_commands,
)
from npmp.identification.preset import PresetConfig, preset, summary, write_preset
from npmp.identification.robot_log import of_robot
from npmp.identification.stand import KINDS, UNITS, Stand, stand_of

__all__ = [
    "KINDS",
    "UNITS",
    "ExcitationConfig",
    "IdentificationConfig",
    "Identified",
    "JointRecording",
    "PresetConfig",
    "Prior",
    "Stand",
    "StandLog",
    "drawn",
    "excitation",
    "identify",
    "of_robot",
    "preset",
    "read_stand_log",
    "simulated",
    "stand_of",
    "summary",
    "write_commands",
    "write_preset",
    "write_stand_log",
]
