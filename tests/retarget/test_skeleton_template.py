"""Templates of skeleton files for unknown markers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from mocap_data.readers import read
from npmp.experiments.inspect import skeleton_file
from retarget.inspection import inspect_recording
from retarget.skeleton_template import skeleton_template
from retarget.skeletons import read_skeleton

LAB = {
    "chest": "Cerv7",
    "shoulder": "_Acromion",
    "hip": "_ASIS",
    "knee": "_KneeLat",
    "foot": "_AnkleLat",
    "toe": "_Toe",
    "heel": "_Heel",
    "elbow": "_Elbow",
}


def test_a_persons_markers_are_guessed_by_names(tmp_path: Path) -> None:
    """Of a recording without bones; what has no guess is a comment."""
    names = [name for name in LAB.values() if not name.startswith("_")]
    names += [f"{side}{name}" for name in LAB.values() if name.startswith("_") for side in "RL"]
    positions = np.random.default_rng(0).uniform(0.0, 1.7, (20, len(names), 3))
    np.savez(tmp_path / "lab.npz", positions=positions, names=names, fps=100.0)
    findings = inspect_recording(tmp_path / "lab.npz")
    assert findings["keypoints"] == list(read(tmp_path / "lab.npz").names)
    path = tmp_path / "skeleton.yaml"
    path.write_text(skeleton_file(findings))
    assert "\n  # L_hand:\n  # R_hand:\n" in path.read_text()
    expected = {"chest": {"Cerv7": 1.0}}
    for part, name in LAB.items():
        if part != "chest":
            expected |= {f"{side}_{part}": {f"{side}{name}": 1.0} for side in "LR"}
    assert read_skeleton(path).markers == expected


def test_a_dogs_markers_are_guessed_by_names() -> None:
    names = ["Back1", "Fore_Paw_L", "Fore_Paw_R", "Hind_Paw_L", "Hind_Paw_R", "*7: x"]
    text = skeleton_template(names, "why")
    markers = yaml.safe_load(text)["markers"]
    assert markers == {
        "base": "Back1",
        "LF_foot": "Fore_Paw_L",
        "RF_foot": "Fore_Paw_R",
        "LH_foot": "Hind_Paw_L",
        "RH_foot": "Hind_Paw_R",
    }
    assert "# LF_shoulder:" in text
