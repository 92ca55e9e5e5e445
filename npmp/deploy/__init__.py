"""Run policies on robots, without torch and MuJoCo.

`npmp.deploy.export` writes a policy and its module as a bundle, `Bundle` reads and checks it,
`OnnxPolicy` runs it.
"""

from npmp.deploy.bundle import Bundle
from npmp.deploy.contract import BundleContract
from npmp.deploy.onnx_policy import OnnxPolicy, Readings

__all__ = ["Bundle", "BundleContract", "OnnxPolicy", "Readings"]
