"""`npmp retarget`: what it refuses, leaves out, warns of and records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pytest import CaptureFixture

from mocap_data import Clip, dog_gait, read_motions
from mocap_data.readers.common import DOG_NAMES
from npmp import robots
from npmp.experiments import cli
from tests.experiments.command import Says, refusing

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(scope="module")
def walk() -> Clip:
    return dog_gait("walk", duration_s=1.5)  # 90 frames


def save(
    path: Path, clip: Clip, positions: np.ndarray | None = None, fps: float | None = 60.0
) -> Path:
    arrays = {
        "positions": clip.positions if positions is None else positions,
        "names": np.array(clip.names),
    }
    np.savez(path, **arrays, **({} if fps is None else {"fps": np.array(fps)}))
    return path


def npmp_retarget(*arguments: object) -> int:
    """Reports have tests of their own."""
    return cli.main(["retarget", "up=z", "report=null", *map(str, arguments)])


@pytest.fixture
def refused(capsys: CaptureFixture[str]) -> Says:
    """The one line of a retargeting that fails by the user's fault."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        return refusing(capsys)(*arguments, by=lambda given: npmp_retarget(*given))

    return call


def test_a_recording_is_never_replaced(elsewhere: Path, walk: Clip, refused: Says) -> None:
    source = save(elsewhere / "a.npz", walk)
    before = source.read_bytes()
    link = elsewhere / "link.npz"
    link.symlink_to(source)
    for out in ("a.npz", source, link):
        for args in ("a.npz", ".", "a.npz@0:40"):
            assert "is one of the recordings" in refused(f"source={args}", f"out={out}")
    other = elsewhere / "notes.txt"
    other.write_text("mine")
    assert "is not a dataset of motions" in refused("a.npz", f"out={other}")
    # also from generated gaits
    assert "is not a dataset of motions" in refused(f"out={other}")
    assert source.read_bytes() == before and other.read_text() == "mine"


def test_a_bare_word_is_the_source_and_a_dataset_is_replaced(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str]
) -> None:
    save(elsewhere / "a.npz", walk)
    for _ in range(2):
        assert npmp_retarget("a.npz@0:40", "out=m.h5", "clean=false") == 0
    output = capsys.readouterr()
    assert "1 motion of anymal_b from 40 frames" in output.out and "!" not in output.out
    assert not output.err


def test_wrong_units_are_warned_of(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str]
) -> None:
    save(elsewhere / "a.npz", walk)
    assert npmp_retarget("a.npz", "scale=100", "out=m.h5", "clean=false") == 0
    output = capsys.readouterr()
    assert "a !" in output.out and "! marks a recording that looks misread" in output.out
    (line,) = output.err.strip().splitlines()
    assert line.startswith("npmp: warning: a looks wrong: ")
    assert "units? scale= should be 100 times smaller" in line
    assert npmp_retarget("a.npz", "scale=100", "max_error_m=0.001", "out=n.h5") == 2
    warning, error = capsys.readouterr().err.strip().splitlines()
    assert warning.startswith("npmp: warning: a looks wrong")
    assert "cleaning keeps nothing of 1 recording" in error
    assert "far from the recording 1.5 s (max_error_m=)" in error
    assert "clean=false keeps all" in error
    assert not Path("n.h5").exists()


def test_wrong_units_are_left_out_unless_scale_says_them(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str], refused: Says
) -> None:
    folder = elsewhere / "clips"
    folder.mkdir()
    save(folder / "huge.npz", walk, 100.0 * walk.positions)
    line = refused(f"source={folder}", "out=m.h5")  # nothing else is there
    assert "huge is " in line and "units? scale= should be 100 times smaller" in line
    assert "scale=" in line
    assert not Path("m.h5").exists()
    save(folder / "good.npz", walk)
    assert npmp_retarget(f"source={folder}", "out=m.h5", "clean=false") == 0
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert str(folder / "huge.npz") in line and "scale=" in line
    motions = read_motions("m.h5")
    assert motions.names == ("good",) and "scale=" in motions.provenance["failures"]
    line = refused(f"source={folder}", "out=n.h5", "strict=true")
    assert "scale=" in line
    code = npmp_retarget(f"source={folder / 'huge.npz'}", "scale=0.01", "out=m.h5", "clean=false")
    assert code == 0
    assert capsys.readouterr().err == ""


def test_names_and_rate_of_robots_tables(capsys: CaptureFixture[str], robot: robots.Robot) -> None:
    """A second at 100 Hz without a header: 19 columns fit 12 joints; at the robot's 50 Hz after."""
    row = [0.0, 0.0, *robot.home_qpos[2:3], 0.0, 0.0, 0.0, 1.0, *robot.home_qpos[7:]]
    np.savetxt("a.csv", np.tile(row, (101, 1)), delimiter=",")
    command = ["retarget", "report=null", "clean=false", "source=a.csv", "source_rate_hz=100"]
    listed = f"names=[{','.join(robot.joint_names)}]"
    assert cli.main([*command, listed, "out=m.h5"]) == 0
    motion = read_motions("m.h5").motions[0]
    assert motion.rate_hz == 50.0 and motion.num_frames == 51
    np.testing.assert_allclose(motion.qpos[-1], robot.home_qpos, atol=1e-6)
    assert cli.main([*command, listed, "rate_hz=25", "out=n.h5"]) == 0
    assert read_motions("n.h5").motions[0].rate_hz == 25.0
    capsys.readouterr()
    # a frame alone is left out
    np.savetxt("one.csv", np.array([row]), delimiter=",")
    both = [*command[:3], "source=[one.csv,a.csv]", listed, "out=p.h5"]
    assert cli.main(both) == 0 and read_motions("p.h5").names == ("a",)
    assert "motion 'one': 0.0333 s is too short for 50 Hz" in capsys.readouterr().err
    for wrong in ("scale=0.01", "up=y"):
        assert cli.main([*command, listed, wrong, "out=o.h5"]) == 2
        assert f"{wrong}: needs keypoints, not for robots' motions" in capsys.readouterr().err


def test_an_assumed_rate_is_a_warning(capsys: CaptureFixture[str], robot: robots.Robot) -> None:
    """Two seconds of 50 Hz without a column of times are taken for 3.3 s of 30 Hz."""
    row = [0.0, 0.0, *robot.home_qpos[2:3], 0.0, 0.0, 0.0, 1.0, *robot.home_qpos[7:]]
    rows = np.tile(row, (100, 1))
    np.savetxt("a.csv", rows, delimiter=",")
    np.savetxt("walk_50hz.csv", rows, delimiter=",")
    listed = f"names=[{','.join(robot.joint_names)}]"
    command = ["retarget", "report=null", "clean=false", listed, "out=m.h5"]
    assert cli.main([*command, "source=[a.csv,walk_50hz.csv]"]) == 0
    output = capsys.readouterr()
    named, silent = output.err.strip().splitlines()
    assert named.startswith(
        "npmp: warning: walk_50hz looks wrong: a rate of 30 frames/s is assumed"
    )
    assert "source_rate_hz=50" in named
    assert silent == "npmp: warning: assumed: source_rate_hz=30 (not in a)"
    assert "assumed: quaternions as x, y, z, w (not in 2 recordings)" in output.out
    origins = json.loads(read_motions("m.h5").provenance["recordings"])
    assert [origin["assumed"] for origin in origins] == [["rate_hz", "quaternion"]] * 2
    assert cli.main(["inspect", "m.h5"]) == 0
    assert "source_rate_hz=30 (not in 2 recordings)" in capsys.readouterr().out
    assert cli.main([*command, "source=walk_50hz.csv", "source_rate_hz=50"]) == 0
    assert capsys.readouterr().err == ""


def test_feet_that_never_stand_are_not_shown_as_good(
    elsewhere: Path, capsys: CaptureFixture[str]
) -> None:
    """A trot of 1 m/s on a treadmill."""
    trot = dog_gait("trot", speed_mps=1.0, duration_s=2.0)
    belt = np.arange(trot.num_frames)[:, None] / trot.rate_hz * [1.0]
    positions = trot.positions.copy()
    positions[..., 0] -= belt
    save(elsewhere / "belt.npz", trot, positions)
    assert cli.main(["retarget", "source=belt.npz", "up=z", "out=m.h5"]) == 0
    output = capsys.readouterr()
    assert "belt looks wrong: no foot stands: near the floor they move at " in output.err
    [row] = [line.split() for line in output.out.splitlines() if " belt ! " in line]
    # seconds, RMS, largest, near the floor, slide
    assert row[2] == "2.0" and float(row[5]) == pytest.approx(100, abs=10) and row[6] == "-"
    [motion] = read_motions("m.h5").motions
    assert "foot_slide_mps" not in motion.quality
    page = Path("m.html").read_text(encoding="utf-8")
    assert ">no foot stands<" in page and "belt looks wrong: no foot stands" in page
    assert "scale=1 (not in belt)" in page
    assert cli.main(["inspect", "m.h5"]) == 0
    assert "warnings: belt looks wrong: no foot stands" in capsys.readouterr().out


def test_frames_are_reported_as_typed(elsewhere: Path, walk: Clip, refused: Says) -> None:
    save(elsewhere / "a.npz", walk)
    expected = "a.npz: no frames 8000:9000 of 90 frames"
    assert expected in refused("a.npz@8000:9000")
    assert "no frames 50:20 " in refused("a.npz@50:20")
    for wrong in ("abc", "1:2:3"):
        assert f"{wrong!r} are not frames" in refused(f"source=a.npz@{wrong}")
    assert "no file or folder 'b.npz@abc'" in refused("b.npz@abc")
    assert npmp_retarget("source=[a.npz@0:40,a.npz@50:9000]", "out=m.h5", "clean=false") == 0
    assert read_motions("m.h5").names == ("a_0_40", "a_50_90")


def test_provenance_says_what_was_used(elsewhere: Path, walk: Clip) -> None:
    save(elsewhere / "a.npz", walk)
    flat = walk.positions[:, [walk.index(name) for name in DOG_NAMES]].reshape(90, -1)
    np.savetxt("b.csv", flat, delimiter=",")
    assert (
        npmp_retarget("source=[a.npz@10:50,b.csv]", "source_rate_hz=50", "out=m.h5", "clean=false")
        == 0
    )
    provenance = read_motions("m.h5").provenance
    assert json.loads(provenance["recordings"]) == [
        {
            "clip": "a_10_50",
            "file": "a.npz",
            "frames": [10, 50],
            "rate_hz": 50.0,
            "scale": 1.0,
            "up": "z",
            "subject": None,
            "assumed": ["scale"],
        },
        {
            "clip": "b",
            "file": "b.csv",
            "frames": [0, 90],
            "rate_hz": 50.0,
            "scale": 1.0,
            "up": "z",
            "subject": None,
            "assumed": ["scale", "names"],
        },
    ]
    assert provenance["rate_hz"] == "50.0" and "frames" not in provenance
    assert "offsets" in provenance


def test_what_cleaning_does_is_shown_and_kept(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str]
) -> None:
    """A walk of 1.5 s that hops off the floor in the middle, and one as it is."""
    positions = np.concatenate([walk.positions] * 3)  # 4.5 s
    positions[120:150, :, 2] += 0.6
    save(elsewhere / "hop.npz", walk, positions)
    save(elsewhere / "walk.npz", walk)
    assert npmp_retarget("source=.", "out=m.h5", "mirrors=left_right", "validation=0.3") == 0
    output = capsys.readouterr().out
    motions = read_motions("m.h5")
    assert "feet far from the ground" in output
    assert f"{len(motions.motions)} motions of anymal_b from 360 frames" in output
    assert {motion.recording for motion in motions.motions} == {"hop", "walk"}
    assert {motion.mirror for motion in motions.motions} == {"", "left_right"}
    held = {motion.recording for motion in motions.motions if motion.split == "validation"}
    assert len(held) == 1  # a recording and its mirrors stay together
    dropped = json.loads(motions.provenance["dropped"])
    assert {entry["recording"] for entry in dropped} == {"hop"}
    assert any(
        entry["reason"] == "feet far from the ground" and 1.5 < entry["start_s"] < 2.5
        for entry in dropped
    )
    seconds = json.loads(motions.provenance["seconds"])
    lost = sum(entry["stop_s"] - entry["start_s"] for entry in dropped)
    assert seconds["kept"] == pytest.approx(seconds["read"] - lost, abs=0.01)
    for motion in motions.motions:
        assert motion.quality["limit_violations"] == motion.quality["velocity_violations"] == 0


def test_a_recording_may_be_called_as_one_over_stairs(elsewhere: Path) -> None:
    walk = dog_gait("walk", duration_s=3.0)
    save(elsewhere / "a.npz", walk)
    save(elsewhere / "a_stairs.npz", walk)
    assert npmp_retarget("source=.", "stairs=[0.02,0.03]", "out=m.h5") == 0
    motions = read_motions("m.h5").motions
    recordings = {motion.name: motion.recording for motion in motions if motion.ground}
    assert recordings == {"a_stairs_2": "a", "a_stairs_stairs": "a_stairs"}


def test_a_misread_clip_does_not_spoil_the_others(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str]
) -> None:
    folder = elsewhere / "clips"
    folder.mkdir()
    save(folder / "good.npz", walk)
    assert npmp_retarget(f"source={folder}", "out=alone.h5", "clean=false") == 0
    save(folder / "over.npz", walk, walk.positions * [1.0, -1.0, -1.0])
    assert npmp_retarget(f"source={folder}", "out=m.h5", "clean=false") == 0
    message = capsys.readouterr().err
    assert (
        "over looks wrong" in message and "upside down" in message and "good looks" not in message
    )
    motions, alone = read_motions("m.h5"), read_motions("alone.h5")
    assert motions.names == ("good", "over")
    np.testing.assert_array_equal(motions["good"].qpos, alone["good"].qpos)


def test_motions_of_others_are_taken_as_they_are(
    elsewhere: Path, walk: Clip, capsys: CaptureFixture[str]
) -> None:
    from mocap_data.export import write_mjlab_npz
    from retarget.kinematics import body_states, tree_of

    save(elsewhere / "a.npz", walk)
    assert npmp_retarget("a.npz", "out=m.h5", "clean=false") == 0
    (motion,) = read_motions("m.h5").motions
    (elsewhere / "theirs").mkdir()
    robot = robots.load("anymal_b")
    bodies = body_states(tree_of(robot.model(visuals=False)), motion)
    write_mjlab_npz(
        elsewhere / "theirs" / "b.npz", motion, robot.joint_names, robot.body_names, bodies
    )
    capsys.readouterr()
    assert npmp_retarget("source=[a.npz,theirs]", "out=n.h5", "clean=false") == 0
    motions = read_motions("n.h5")
    assert motions.names == ("a", "b") and "2 motions of anymal_b" in capsys.readouterr().out
    np.testing.assert_allclose(motions["b"].qpos[:, 7:], motion.qpos[:, 7:], atol=1e-5)
    assert "rms_marker_m" not in motions["b"].quality
    assert motions["b"].quality["foot_slide_mps"] < 0.02


def test_what_is_left_out_is_named_last(
    elsewhere: Path, walk: Clip, capfd: CaptureFixture[str]
) -> None:
    """Damaged files of a folder, a recording of which cleaning leaves nothing, and warnings; files
    of ours are passed over."""
    folder = elsewhere / "clips"
    folder.mkdir()
    save(folder / "good.npz", walk)
    save(folder / "over.npz", walk, walk.positions * [1.0, -1.0, -1.0])
    (folder / "cut.npz").write_bytes(b"PK")
    (folder / "x.bvh").write_text("")
    assert npmp_retarget(f"source={folder / 'good.npz'}", f"out={folder / 'ours.h5'}") == 0
    capfd.readouterr()
    assert npmp_retarget(f"source={folder}", "out=m.h5") == 0
    output = capfd.readouterr()
    lines = output.err.strip().splitlines()
    assert lines[0].startswith("npmp: warning: over looks wrong: ") and len(lines) == 4
    assert all(line.startswith("npmp: left out: ") for line in lines[1:])
    assert lines[1].count("cut.npz") == 1 and "truncated" in lines[1] and "x.bvh" in lines[2]
    assert lines[3] == "npmp: left out: over: nothing kept (far from the recording 1.5 s)"
    assert "!" not in output.out
    motions = read_motions("m.h5")
    assert motions.names == ("good",) and "over: nothing kept" in motions.provenance["failures"]


def test_options_are_checked_before_any_work(capsys: CaptureFixture[str], refused: Says) -> None:
    assert "max_chunk_s=1" in refused("max_chunk_s=1")
    np.savez("a.npz", positions=np.zeros((9, 2, 3)), names=np.array(["a", "b"]))
    assert "asf=x.asf: needs AMC motions" in refused("asf=x.asf", "source=a.npz")
    Path("mine.html").write_text("<p>mine</p>")
    assert cli.main(["retarget", "out=mine.h5"]) == 2
    assert "report=mine.html" in capsys.readouterr().err and not Path("mine.h5").exists()
    assert cli.main(["retarget", "report=no/where.html"]) == 2
    assert "report=no/where.html" in capsys.readouterr().err
