"""`npmp skill`: a module's own words, and robots that wander."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from pytest import CaptureFixture

from npmp.experiments import cli
from npmp.skills import modules
from tests.experiments.command import Says


def test_info(trained: Path, data: Path, tmp_path: Path, printed: Says) -> None:
    args = [str(trained / "module"), f"data={data}", "debug=tiny", f"out={tmp_path / 'read'}"]
    output = printed("skill", "info", *args)
    figures = json.loads((tmp_path / "read" / "info.json").read_text())
    latents = figures["latents"]
    assert figures["robot"] == "anymal_b"
    assert len(latents["dimensions"]) == figures["net"]["latent_dim"]
    kl = [row["kl_nats"] for row in latents["dimensions"]]
    assert kl == sorted(kl, reverse=True)
    assert sum(kl) == pytest.approx(latents["kl_nats_per_step"], rel=1e-4)
    sha256 = figures["file"]["sha256"]
    for words in ("licences", "observation: joint_pos_minus_home 12", sha256, "kl nats"):
        assert words in output


def test_wander_needs_a_module_alone(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    name = modules.names()[0]
    arguments = ["skill", "wander", name, "debug=tiny", "randomization=paper", f"out={tmp_path}"]
    assert cli.main(arguments) == 0
    figures = json.loads((tmp_path / "wander.json").read_text())
    assert figures["starts"] == "home pose"
    assert 0.0 < figures["latents"]["up_s_mean"] <= figures["seconds"] == 0.5
    assert "</html>" in (tmp_path / "report.html").read_text()
    with h5py.File(tmp_path / "rollouts.h5") as file:
        group = file["prior 0"]
        assert group["qvel"].shape[0] == group["setpoints"].shape[0] + 1 == len(group["qpos"])
        # of each step its own
        assert np.ptp(group["setpoints"][()], axis=0).all()
        assert group.attrs["licence"] and name in group.attrs["source"]
    assert "up_s_mean" in capsys.readouterr().out
