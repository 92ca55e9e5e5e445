"""The wheel holds what git tracks of the packages, once, under names of ours alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import npmp

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("experiments", "conf")  # folders that are parts of npmp, by links in it
NOT_INSTALLED = ("npmp/experiments/results/",)


def tracked() -> list[str]:
    """What git tracks, from the root of the checkout."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [
        name for name in listed.split("\0") if (ROOT / name).is_symlink() or (ROOT / name).is_file()
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from the tracked files alone, as an installation builds it but without the network."""
    source, out = tmp_path_factory.mktemp("a checkout"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        if not name.startswith(("tests/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name, follow_symlinks=False)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(out)], cwd=source, capture_output=True, check=True
    )
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_everything_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    expected = []
    for name in tracked():
        top = name.split("/")[0]
        installed = f"npmp/{name}" if top in LINKED else name
        if top in ("mocap_data", "npmp", "retarget", *LINKED) and not (ROOT / name).is_symlink():
            expected.append(installed)
    expected = [name for name in expected if not name.startswith(NOT_INSTALLED)]
    packed = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert sorted(packed) == sorted(expected)
    assert "npmp/experiments/cli.py" in packed and "npmp/conf/debug/tiny.yaml" in packed


def test_the_wheel_has_its_version_and_command(wheel: zipfile.ZipFile) -> None:
    about = f"npmp-{npmp.__version__}.dist-info"
    assert f"\nVersion: {npmp.__version__}\n" in wheel.read(f"{about}/METADATA").decode()
    assert "npmp = npmp.experiments.cli:main" in wheel.read(f"{about}/entry_points.txt").decode()
    expected = ["mocap_data", "npmp", "retarget"]
    assert wheel.read(f"{about}/top_level.txt").decode().split() == expected
