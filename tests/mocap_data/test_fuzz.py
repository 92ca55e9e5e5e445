"""Every reader on damaged files: a result or one line, within bounded time.

Each example takes a valid file of a format and damages it by a few of the operations below.
NPMP_FUZZ=2000 tries so many of each format instead of the usual few.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mocap_data.clip import Clip
from mocap_data.errors import InputError
from mocap_data.motion import ReferenceMotion
from mocap_data.readers import read, read_all
from mocap_data.readers.robot_motions import RobotMotion, read_robot_motion
from mocap_data.store import MotionSet, read_motions, splits_in, write_motions
from tests.mocap_data.test_asf_amc import AMC, ASF
from tests.mocap_data.test_c3d import c3d_bytes
from tests.mocap_data.test_cmu_h5 import write as write_cmu_h5
from tests.mocap_data.test_deepmimic import BENT, CHARACTER, REST
from tests.mocap_data.test_readers import BVH

SOON_S = 3.0  # of processor time; on an idle core the slowest takes a tenth of it
EXAMPLES = int(os.environ.get("NPMP_FUZZ", "30"))  # of each format

Operation = tuple[str, float, float, int]  # what, where in the file, how much of it, with what


class Sample(NamedTuple):
    """A valid file of a format: its reader, its name, the bytes to damage, and the files it needs
    beside it."""

    read: Callable[..., object]
    name: str
    data: bytes
    beside: dict[str, bytes] = {}  # noqa: RUF012 (never changed)


UNITREE = (b"0,0,1,0,0,0,1" + b",0.1" * 29 + b"\n") * 4


def archive(*, packed: bool = False, **arrays: object) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(stream, **arrays)
    return stream.getvalue()


def npy(values: object) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def read_packed(path: Path) -> object:
    """Read an archive of which the positions are the bytes of a file."""
    with zipfile.ZipFile(path.with_suffix(".npz"), "w") as packed:
        for key, values in keypoints().items():
            packed.writestr(f"{key}.npy", path.read_bytes() if key == "positions" else npy(values))
    return read(path.with_suffix(".npz"))


def keypoints() -> dict[str, object]:
    return {
        "positions": np.ones((4, 2, 3)),
        "names": np.array(["a", "b"]),
        "fps": 60.0,
        "parents": np.array([-1, 0]),
    }


def mjlab() -> dict[str, object]:
    flat = np.ones((4, 2, 3), np.float32)
    turn = np.tile([1.0, 0, 0, 0], (4, 2, 1))
    return {
        "fps": np.array([50.0]),
        "joint_pos": np.ones((4, 3)),
        "joint_vel": np.ones((4, 3)),
        "body_pos_w": flat,
        "body_quat_w": turn,
        "body_lin_vel_w": flat,
        "body_ang_vel_w": flat,
        "joint_names": np.array(["a", "b", "c"]),
        "body_names": np.array(["base", "foot"]),
    }


def cmu_h5() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_cmu_h5(Path(folder, "a.h5"), {"CMU_001": 4, "CMU_002": 4}).read_bytes()


def dataset() -> bytes:
    """Two motions of a robot as `write_motions` writes them."""
    turn = np.tile([1.0, 0, 0, 0], (4, 2, 1))
    motions = [
        ReferenceMotion(
            name=name,
            qpos=np.concatenate([np.ones((4, 3)), turn[:, 0], np.ones((4, 2))], axis=1),
            rate_hz=50.0,
            quality={"rms_marker_m": 0.01},
            contacts=np.ones((4, 2), bool),
            frame_quality={"marker_rms_m": np.ones(4)},
        )
        for name in ("walk", "trot")
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_motions(
            f"{folder}/a.h5",
            MotionSet("dog", "ab" * 32, ("a", "b"), ("base", "foot"), tuple(motions), {"a": "b"}),
        )
        return Path(folder, "a.h5").read_bytes()


def read_dataset(path: Path) -> object:
    splits_in(path)
    return list(read_motions(path).motions)


def csv(path: Path) -> object:
    return read(path, names=["a", "b"], rate_hz=60)


SAMPLES: dict[str, Callable[[], Sample]] = {
    "bvh": lambda: Sample(read, "a.bvh", BVH.encode()),
    "amc": lambda: Sample(read, "1_1.amc", AMC.encode(), {"1.asf": ASF.encode()}),
    "asf": lambda: Sample(
        lambda path: read(path.with_name("2_1.amc")),
        "2.asf",
        ASF.encode(),
        {"2_1.amc": AMC.encode()},
    ),
    "csv": lambda: Sample(csv, "a.csv", b"0,1,2,3,4,5.5\n" * 6),
    "named_csv": lambda: Sample(
        read,
        "n.csv",
        b"time,l_x,l_y,l_z,r_x,r_y,r_z\n" + b"".join(b"0.%d,1,2,3,4,5,6\n" % i for i in range(5)),
    ),
    "dog_txt": lambda: Sample(read, "a.txt", b",\t".join(b"%d.5" % i for i in range(81)) + b",\n"),
    "npz": lambda: Sample(read, "a.npz", archive(**keypoints())),
    "packed_npz": lambda: Sample(read, "a.npz", archive(packed=True, **keypoints())),
    # the archive's checksums stay right
    "npz_inside": lambda: Sample(read_packed, "p.npy", npy(np.ones((4, 2, 3)))),
    "deepmimic": lambda: Sample(
        read,
        "k_a.txt",
        json.dumps({"Frames": [REST, BENT]}).encode(),
        {"k_character.txt": json.dumps(CHARACTER).encode()},
    ),
    "character": lambda: Sample(
        lambda path: read(path.with_name("q_a.txt")),
        "q.txt",
        json.dumps(CHARACTER).encode(),
        {"q_a.txt": json.dumps({"Frames": [REST, BENT]}).encode()},
    ),
    "cmu_h5": lambda: Sample(read_all, "a.h5", cmu_h5()),
    "c3d": lambda: Sample(read, "a.c3d", c3d_bytes(np.ones((4, 3, 3)))),
    "dataset": lambda: Sample(read_dataset, "d.h5", dataset()),
    "mjlab": lambda: Sample(read_robot_motion, "m.npz", archive(**mjlab())),
    "unitree_csv": lambda: Sample(read_robot_motion, "m.csv", UNITREE),
}
NUMBERS = b"nan inf -1 0 1e308 -1e308 1e-320 999999999 4294967296 1_0 0x10  1,5".split(b" ")
NUMBERS.append(b"9" * 400)
PIECES = [*(bytes([c]) for c in b'\0\r{}[":#'), b"\xff\xfe", b"\xef\xbb\xbf", b"\n\n\n"]
PIECES += [b"1 " * 2000, b" " * 20_000, b"JOINT j { " * 500]


def damaged(data: bytes, operations: list[Operation]) -> bytes:
    """A file's bytes after some operations."""
    for what, where, much, which in operations:
        at = int(where * len(data))
        size = 1 + int(much * much * len(data) / 4)
        if what == "cut":
            data = data[:at]
        elif what == "flip":
            data = (
                data[:at]
                + bytes(b ^ (which % 255 + 1) for b in data[at : at + 1 + which % 3])
                + data[at + 1 + which % 3 :]
            )
        elif what == "remove":
            data = data[:at] + data[at + size :]
        elif what == "repeat":
            data = data[: at + size] + data[at : at + size] * (1 + which % 50) + data[at + size :]
        elif what == "insert":
            data = data[:at] + PIECES[which % len(PIECES)] + data[at:]
        elif what == "number":
            start = next((i for i in range(at, len(data)) if data[i] in b"0123456789-"), len(data))
            stop = next(
                (i for i in range(start, len(data)) if data[i] not in b"0123456789.e+-"), len(data)
            )
            data = data[:start] + NUMBERS[which % len(NUMBERS)] + data[stop:]
        elif what == "lines":
            lines = data.splitlines(keepends=True)
            if lines:
                lines.insert(int(much * len(lines)), lines.pop(int(where * len(lines))))
            data = b"".join(lines)
        elif what == "utf16":
            data = data.decode("latin-1").encode("utf-16")
        elif what == "noise":
            data = data[:at] + np.random.default_rng(which).bytes(size) + data[at + size :]
    return data


OPERATIONS = [
    *["flip", "number"] * 3,
    "cut",
    "remove",
    "repeat",
    "insert",
    "lines",
    "utf16",
    "noise",
]
share = st.floats(0.0, 1.0, exclude_max=True)
examples = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), share, share, st.integers(0, 2**16)),
    min_size=1,
    max_size=4,
)


def outcome(folder: Path, sample: Sample, data: bytes) -> str:
    """The result of reading a file: "result" or the error's line, within SOON_S."""
    for name, content in {**sample.beside, sample.name: data}.items():
        (folder / name).write_bytes(content)
    begin = time.process_time()
    try:
        result = sample.read(folder / sample.name)
        message = "result"
        for clip in result if isinstance(result, list) else [result]:
            assert isinstance(clip, Clip | RobotMotion | ReferenceMotion)
            if isinstance(clip, Clip):
                assert np.isfinite(clip.positions).all()
    except InputError as error:
        message = str(error)
        assert message and "\n" not in message and "\r" not in message, repr(message)
        assert len(message) < 1500, message
    assert time.process_time() - begin < SOON_S, f"{time.process_time() - begin:.1f} s: {message}"
    return message


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def sample(request: pytest.FixtureRequest) -> Sample:
    return SAMPLES[request.param]()


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_samples_are_valid(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]()
    assert outcome(tmp_path, sample, sample.data) == "result"


@settings(max_examples=EXAMPLES)
@example(operations=[("cut", 0.0, 0.0, 0)])
@example(operations=[("utf16", 0.0, 0.0, 0)])
@given(operations=examples)
def test_damaged_files_give_a_result_or_one_line(
    sample: Sample, tmp_path_factory: pytest.TempPathFactory, operations: list[Operation]
) -> None:
    outcome(tmp_path_factory.getbasetemp(), sample, damaged(sample.data, operations))
