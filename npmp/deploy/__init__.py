"""Policies off the simulator: a folder that a robot can run, without torch and without MuJoCo.

`Bundle` reads and checks the folder, `OnnxPolicy` acts; `npmp.deploy.export` writes one of a policy
and its module.
"""

from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import BundleContract
from npmp.deploy.onnx_policy import OnnxPolicy, Readings

__all__ = ["Bundle", "BundleContract", "OnnxPolicy", "Readings"]
