"""The wheel holds what git tracks of the packages, once, under names of ours alone."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest

import npmp
from tests.package_index import outside, pip_install

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


@pytest.fixture(scope="module")
def clean(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an empty environment with the wheel, from the index that pip is set to."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    wanted = f"{wheel.filename}[deploy]"
    constraints = str(ROOT / "constraints.txt")
    pip_install(folder / "bin" / "python", "--constraint", constraints, wanted, folder=folder)
    return folder / "bin"


@pytest.mark.slow
def test_the_wheel_works_on_a_clean_python(clean: Path, tmp_path: Path) -> None:
    def npmp(*words: str) -> str:
        result = subprocess.run(
            [clean / "npmp", *words], cwd=tmp_path, env=outside(), capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    npmp("evaluate", "debug=tiny", "policy=anymal_b_walk", "out=evaluation")
    assert (tmp_path / "evaluation" / "report.html").is_file()
    npmp("deploy", "export", "debug=tiny", "policy=anymal_b_walk", "out=bundle")
    assert "largest difference from torch" in npmp("deploy", "check", "bundle")

    play = subprocess.Popen(
        [clean / "npmp", "play", "port=0"],
        cwd=tmp_path,
        env=outside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert play.stdout is not None
        address = play.stdout.readline().strip()
        with urlopen(address, timeout=60.0) as page:
            assert "<title>npmp play</title>" in page.read().decode()
        play.send_signal(signal.SIGINT)
        _, message = play.communicate(timeout=60.0)
        assert play.returncode == 130 and "Traceback" not in message, message
    finally:
        play.kill()
