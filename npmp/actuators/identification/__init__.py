"""System identification: parameters of a robot's joints from logs of it on a stand."""

from npmp.actuators.identification.stand import Stand

__all__ = ["Stand"]
