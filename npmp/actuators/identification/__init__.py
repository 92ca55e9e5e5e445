"""System identification: what a robot's joints are made of, from logs of it on a stand."""

from npmp.actuators.identification.stand import Stand

__all__ = ["Stand"]
