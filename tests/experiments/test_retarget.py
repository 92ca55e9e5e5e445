"""`npmp retarget`: what it refuses, leaves out, warns of and records."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import cli
from mocap_data import Clip, dog_gait, read_motions
from mocap_data.readers.common import DOG_NAMES


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def walk() -> Clip:
    return dog_gait("walk", duration_s=1.5)  # 90 frames


def save(path: Path, clip: Clip, positions: np.ndarray | None = None, fps: float | None = 60.0) -> Path:
    arrays = {"positions": clip.positions if positions is None else positions, "names": np.array(clip.names)}
    np.savez(path, **arrays, **({} if fps is None else {"fps": np.array(fps)}))
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that fails by the user's fault."""
    capsys.readouterr()
    assert cli.main(["retarget", "up=z", *map(str, arguments)]) == 2
    text = capsys.readouterr().err
    assert "Traceback" not in text
    assert len(text.strip().splitlines()) == 1, text
    return text


def test_a_recording_is_never_replaced(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(elsewhere / "a.npz", walk)
    before = source.read_bytes()
    link = elsewhere / "link.npz"
    link.symlink_to(source)
    for out in ("a.npz", source, link):
        for given in ("a.npz", ".", "a.npz@0:40"):
            assert "is one of the recordings" in refused(capsys, f"source={given}", f"out={out}")
    other = elsewhere / "notes.txt"
    other.write_text("mine")
    assert "is no dataset of motions" in refused(capsys, "a.npz", f"out={other}")
    assert "is no dataset of motions" in refused(capsys, f"out={other}")  # also from generated gaits
    assert source.read_bytes() == before and other.read_text() == "mine"


def test_a_bare_word_is_the_source_and_a_dataset_is_replaced(
    elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]
) -> None:
    save(elsewhere / "a.npz", walk)
    for _ in range(2):
        assert cli.main(["retarget", "a.npz@0:40", "up=z", "out=m.h5"]) == 0
    shown = capsys.readouterr()
    assert "1 motion of anymal_b, 40 frames" in shown.out and "!" not in shown.out
    assert not shown.err


def test_an_absurd_value_leaves_out_one_clip(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    folder = elsewhere / "clips"
    folder.mkdir()
    save(folder / "good.npz", walk)
    wild = walk.positions.copy()
    wild[7, 0, 1] = 1e30
    bad = save(folder / "bad.npz", walk, wild)
    save(folder / "point.npz", walk, np.zeros_like(walk.positions))
    assert cli.main(["retarget", f"source={folder}", "up=z", "out=m.h5"]) == 0
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2 and all("left out" in line for line in lines)
    assert str(bad) in lines[0] and "Hips is 1e+30 m" in lines[0] and "frame 7" in lines[0]
    assert "point.npz" in lines[1] and "0 m apart" in lines[1]
    assert read_motions("m.h5").names == ("good",)
    line = refused(capsys, f"source={bad}", "out=n.h5")
    assert line.count(str(bad)) == 1 and not Path("n.h5").exists()


def test_wrong_units_are_warned_of(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    save(elsewhere / "a.npz", walk)
    assert cli.main(["retarget", "a.npz", "up=z", "scale=100", "out=m.h5"]) == 0
    shown = capsys.readouterr()
    assert "a !" in shown.out
    (line,) = shown.err.strip().splitlines()
    assert line.startswith("npmp: warning: a looks wrong: RMS ") and "units? scale=; axis? up=" in line
    assert cli.main(["retarget", "a.npz", "up=z", "scale=0.1", "out=m.h5"]) == 0  # small enough to fit well
    assert "looks wrong: an animal of 0." in capsys.readouterr().err


def test_long_and_slow_is_warned_of(walk: Clip) -> None:
    import dataclasses

    from experiments.retarget import doubts
    from npmp import robots
    from retarget import retarget

    motion = retarget(walk, robots.load("anymal_b"))
    assert doubts(motion, walk) == ""
    slow = dataclasses.replace(walk, rate_hz=0.1)  # 90 frames: 900 s
    assert "900 s at 0.1 frames/s (rate?" in doubts(motion, slow)
    beyond = dataclasses.replace(motion, quality={**motion.quality, "limit_violations": 1.0})
    assert "1 limit violation (" in doubts(beyond, walk)


def test_messages_speak_of_the_commands_keys(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt("six.csv", np.zeros((9, 6)), delimiter=",")
    line = refused(capsys, "six.csv")
    assert "does not name its keypoints" in line and "mocap_data.read(path, names=...)" in line and "rate_hz" not in line
    save(elsewhere / "a.npz", walk, fps=None)
    assert "a.npz does not say its rate; give source_rate_hz=" in refused(capsys, "a.npz")
    assert cli.main(["retarget", "a.npz", "up=z", "source_rate_hz=60", "out=m.h5"]) == 0
    Path("b.bvh").write_text("HIERARCHY")
    assert "source_rate_hz=30 is for keypoint files" in refused(capsys, "b.bvh", "source_rate_hz=30")
    line = refused(capsys, "a.npz", "source_rate_hz=60", "scale=0")
    assert line.count("a.npz") == 1 and "scale 0" in line
    assert "rounds=0: a whole number of at least 1" in refused(capsys, "rounds=0")


def test_frames_are_reported_as_typed(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    save(elsewhere / "a.npz", walk)
    assert "a.npz: no frames 8000:9000; the recording has 90 frames" in refused(capsys, "a.npz@8000:9000")
    assert "no frames 50:20;" in refused(capsys, "a.npz@50:20")
    for wrong in ("abc", "-100:", "1:2:3", "1.5:9", ""):
        assert f"{wrong!r} is no stretch of frames; FILE@START:STOP" in refused(capsys, f"source=a.npz@{wrong}")
    assert "no file or folder 'b.npz@abc'" in refused(capsys, "b.npz@abc")
    assert cli.main(["retarget", "source=[a.npz@0:40,a.npz@50:9000]", "up=z", "out=m.h5"]) == 0
    assert read_motions("m.h5").names == ("a_0_40", "a_50_90")


def test_unfit_clips_are_named_by_their_file(elsewhere: Path, walk: Clip, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(elsewhere / "a.npz", walk)
    line = refused(capsys, f"source={path}@0:1")
    assert str(path) in line and "has 1 frame; retargeting needs at least 8" in line
    path = save(elsewhere / "b.npz", walk.select(walk.names[:5]))
    assert str(path) in refused(capsys, f"source={path}")


def test_provenance_says_what_was_used(elsewhere: Path, walk: Clip) -> None:
    save(elsewhere / "a.npz", walk)
    flat = walk.positions[:, [walk.index(name) for name in DOG_NAMES]].reshape(90, -1)
    np.savetxt("b.csv", flat, delimiter=",")
    assert cli.main(["retarget", "source=[a.npz@10:50,b.csv]", "up=z", "source_rate_hz=50", "out=m.h5"]) == 0
    provenance = read_motions("m.h5").provenance
    assert json.loads(provenance["recordings"]) == [
        {"clip": "a_10_50", "file": "a.npz", "frames": [10, 50], "rate_hz": 50.0, "scale": 1.0, "up": "z"},
        {"clip": "b", "file": "b.csv", "frames": [0, 90], "rate_hz": 50.0, "scale": 1.0, "up": "z"},
    ]
    assert provenance["rate_hz"] == "50.0" and "frames" not in provenance and "offsets" in provenance
