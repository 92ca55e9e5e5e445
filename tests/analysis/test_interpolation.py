"""Between two clips: phases, which frames are mixed, and that the ends are the clips themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mocap_data.errors import InputError
from mocap_data.store import MotionSet
from npmp import analysis, modules
from npmp.analysis import interpolation
from npmp.analysis.interpolation import (
    _command,
    aligned,
    at_times,
    frame_pairs,
    mixed,
    stride_phase,
)
from npmp.envs import RobotBatchConfig
from npmp.robots import Robot
from npmp.skill import SkillModule
from npmp.tracking import track
from tests.environments import imitation_env


def test_phases_count_touch_downs(motions: MotionSet) -> None:
    """Down at frames 4, 10 and 14: phase 0, 1 and 2 there; 1/6 a frame before and between, 1/4
    after."""
    stands = np.zeros((20, 4), dtype=bool)
    for start in (4, 10, 14):
        stands[start : start + 2, 1] = True
    source = motions.motions[0]
    motion = replace(source, qpos=source.qpos[:20], contacts=stands, frame_quality={})
    phase = stride_phase(motion, 1)
    assert phase is not None
    expected = [-4 / 6, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0]
    assert phase[[0, 4, 7, 10, 12, 14, 18]].tolist() == pytest.approx(expected)
    assert stride_phase(motion, 0) is None
    assert stride_phase(replace(motion, contacts=None), 1) is None


def test_frames_of_equal_phase_are_mixed() -> None:
    """Clip b strides at half the rate of a: at w = 0 a frame of b lasts two of a's phase, at w = 1
    two frames of a go by."""
    # b is ahead by whole strides: they do not count
    a, b = np.arange(13) / 4.0, np.arange(25) / 8.0 + 5.0
    first = frame_pairs(a, b, 0.0)
    assert first[0].tolist() == list(range(12)) and first[1].tolist() == list(range(0, 24, 2))
    last = frame_pairs(a, b, 1.0)
    assert last[1].tolist() == list(range(24))
    assert last[0].tolist() == pytest.approx([k / 2 for k in range(24)])
    # phase advances by (1/4 + 1/8) / 2 = 3/16: 3/4 of a's frame, 3/2 of b's
    middle = frame_pairs(a, b, 0.5)
    assert middle[0][:3].tolist() == pytest.approx([0.0, 0.75, 1.5])
    assert middle[1][:3].tolist() == pytest.approx([0.0, 1.5, 3.0])
    # a starts at phase 0; b's first frame of whole phase is its frame 6
    shifted = frame_pairs(a, b + 0.25, 0.0)
    assert shifted[1][0] == 6.0


def test_too_little_tracked_is_told(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three frames of each clip, half a stride apart: no frame of one is in step with any of the
    other."""
    short = torch.zeros(3, SkillModule.load(modules.find("anymal_b_dog")).latent_dim)
    monkeypatch.setattr(interpolation, "tracked_latents", lambda *rest: (short, short))
    phases = np.arange(9) / 20.0
    apart = phases, phases + 0.5, "strides of LF_FOOT"
    monkeypatch.setattr(interpolation, "aligned", lambda *rest: apart)
    said, few = r"no frames of equal phase .* 0\.06 s of .* and 0\.06 s of", {"weights": 3}
    with pytest.raises(InputError, match=said):
        analysis.interpolate("anymal_b_dog", motions, *motions.names, robot=robot, **few)


def test_mixing_by_hand() -> None:
    z = torch.tensor([[0.0, 2.0], [1.0, 4.0]])
    between = at_times(z, np.array([0.0, 0.5, 1.0, 1.5])).tolist()
    assert between == [[0.0, 2.0], [0.5, 3.0], [1.0, 4.0], [1.0, 4.0]]
    assert mixed(z, -z, 0.25, "linear").tolist() == (0.5 * z).tolist()
    torch.testing.assert_close(mixed(z, z, 0.5, "variance"), z * 2**0.5)


def test_the_ends_are_the_clips(robot: Robot, motions: MotionSet) -> None:
    """At w = 0 and 1 the robot is given what tracking gave it, from the same start: it does the
    same."""
    names = motions.names
    result = analysis.interpolate(
        "anymal_b_dog", motions, *names, robot=robot, weights=3, threads=1
    )
    assert result.aligned_by.startswith("strides of ") and len(result.rows()) == 3
    skill = analysis.open_module("anymal_b_dog")
    env = imitation_env(robot, motions, 2, robots=RobotBatchConfig().like(skill))
    clip = torch.arange(2)
    tracked = track(skill, env, clip, env.task.reference.start[clip])
    for column, i in ((0, 0), (2, 1)):
        steps = min(int(result.steps[column]), 40)
        assert steps >= 20
        # batches of other sizes round differently in the last bits
        torch.testing.assert_close(
            result.qpos[: steps + 1, column], tracked.qpos[: steps + 1, i], atol=1e-3, rtol=0.0
        )


def test_a_simulation_that_breaks_down_is_no_longer_up(
    robot: Robot, motions: MotionSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    skill = analysis.open_module("anymal_b_dog")
    env = imitation_env(robot, motions, 2)
    advance, steps = env.robots.step, []

    def breaking(action: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        steps.append(1)
        if len(steps) == 4:
            env.sim.qvel[0, 2] = 1e12
        return advance(action, generator)

    monkeypatch.setattr(env.robots, "step", breaking)
    commands = [torch.zeros(8, skill.latent_dim)] * 2
    assert _command(skill, env, commands, torch.tensor([0, 1]), 1).steps.tolist() == [3, 8]


def test_what_cannot_be_mixed_is_refused(robot: Robot, motions: MotionSet) -> None:
    trot, walk = (replace(m, contacts=None) for m in motions.motions)
    assert aligned(trot, walk, robot, "auto")[2] == "frames"
    with pytest.raises(InputError, match="touches down three times in both clips"):
        aligned(trot, walk, robot, "strides")
    wrongs = {
        "no alignment 'feet'": {"align": "feet"},
        "no mix 'cubic'": {"mix": "cubic"},
        "at least 2": {"weights": 1},
    }
    for words, wrong in wrongs.items():
        with pytest.raises(InputError, match=words):
            analysis.interpolate("anymal_b_dog", motions, *motions.names, robot=robot, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no motion 'cat'"):
        analysis.interpolate("anymal_b_dog", motions, "cat", motions.names[0], robot=robot)
