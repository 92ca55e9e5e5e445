"""A walking policy as a static page: MuJoCo and onnxruntime run in the browser."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import __version__
from npmp.deploy.bundle import CONTRACT, GRAPH, Bundle
from npmp.deploy.contract import BundleContract
from npmp.deploy.safety import SafetyConfig
from npmp.deploy.simulated import SimulatedRobot, check_model
from npmp.deploy.trial import COMMAND
from npmp.robots import Robot
from npmp.view.robot_shapes import COLOURS, moving_bodies, shapes

ASSETS = Path(__file__).with_name("assets")
# longest time in which npm may fetch a library
TIMEOUT_S = 300


@dataclass(frozen=True)
class Library:
    """A package of the npm registry."""

    # NAME@VERSION
    spec: str
    # SHA-512 of its archive, in base64
    sha512: str
    licence: str
    # files in the archive, and their names in vendor/
    files: dict[str, str]
    # the Python package that has the text of its licence; "": the archive has it
    python: str = ""


LIBRARIES = (
    Library(
        "@mujoco/mujoco@3.14.0",
        "WPUYidu4Fx8+uM4hQv80SOA0ifpWGrsNJguKs8JBV8SCTxjKQ2/rqsh880nUH0/Vwa8vuefghvCQkkoed3bkUg==",
        "Apache-2.0",
        {"mujoco.js": "mujoco.js", "mujoco.wasm": "mujoco.wasm"},
        python="mujoco",
    ),
    Library(
        "onnxruntime-web@1.30.0",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        "MIT",
        {
            "dist/ort.wasm.bundle.min.mjs": "onnxruntime.js",
            "dist/ort-wasm-simd-threaded.wasm": "onnxruntime.wasm",
        },
        python="onnxruntime",
    ),
    Library(
        "three@0.187.0",
        "Qiu7R+Cmh8CstZsY1uJOSWnVlfo7ZtNLV7mF8Jltk3LB3AtDu9cRZlcnRKkAk8Y4z6KKw35z7Y7Urd7jWY8etA==",
        "MIT",
        {
            "build/three.module.js": "three.module.js",
            "build/three.core.js": "three.core.js",
            "examples/jsm/controls/OrbitControls.js": "OrbitControls.js",
            "LICENSE": "three-LICENSE",
        },
    ),
)


def write(folder: Path, bundle: Bundle, robot: Robot, name: str) -> int:
    """Write the page of a bundle. name: of the policy. Returns the size of its files [bytes].

    Raises:
      InputError: for other inputs than three velocities, as `check_model` and `scene`, or if a
        library cannot be fetched.
    """
    contract = bundle.contract
    inputs = [*contract.command_names, *contract.extra_inputs]
    if inputs != COMMAND:
        raise InputError(
            f"format=web needs a policy commanded by {', '.join(COMMAND)}: '{contract.task}' has "
            f"{', '.join(inputs)}"
        )
    check_model(contract, robot)
    content = {path.name: path.read_bytes() for path in ASSETS.iterdir()}
    content |= {part: (bundle.folder / part).read_bytes() for part in (CONTRACT, GRAPH)}
    content["robot.xml"] = scene(robot).encode()
    content["page.json"] = json.dumps(settings(robot, contract, name)).encode()
    for library in LIBRARIES:
        content |= {f"vendor/{part}": data for part, data in fetch(library).items()}
        content |= licence_texts(library)
    content["LICENCES.txt"] = licences(robot, contract, name).encode()
    for part, data in content.items():
        with atomic_path(folder / part) as path:
            path.write_bytes(data)
    return sum(len(data) for data in content.values())


def npm() -> str:
    """The path of npm. Raises InputError if it is absent."""
    path = shutil.which("npm")
    if path is None:
        raise InputError("format=web needs npm to fetch its libraries: install Node.js, with npm")
    return path


def fetch(library: Library) -> dict[str, bytes]:
    """A library's files by their names in vendor/, from npm's registry or its cache.

    Raises:
      InputError: if npm is absent or fails, or the archive differs from `sha512`.
    """
    with tempfile.TemporaryDirectory() as folder:
        # no script of the package is run
        flags = ("--ignore-scripts", "--prefer-offline", "--silent")
        command = [npm(), "pack", library.spec, *flags, f"--pack-destination={folder}"]
        try:
            result = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"npm pack {library.spec}: no answer within {TIMEOUT_S} s; can npm reach its "
                "registry?"
            ) from None
        archives = [path.read_bytes() for path in Path(folder).glob("*.tgz")]
    if result.returncode or not archives:
        reason = " ".join(result.stderr.split()) or "failed"
        raise InputError(f"npm pack {library.spec}: {reason:.200}; can npm reach its registry?")
    if base64.b64encode(hashlib.sha512(archives[0]).digest()).decode() != library.sha512:
        raise InputError(f"{library.spec}: sha512 of its archive differs from the pinned one")
    with tarfile.open(fileobj=io.BytesIO(archives[0])) as archive:
        members = {name: f"package/{part}" for part, name in library.files.items()}
        files = {name: archive.extractfile(member) for name, member in members.items()}
        return {name: file.read() for name, file in files.items() if file is not None}


def licence_texts(library: Library) -> dict[str, bytes]:
    """The licence and notices of a library whose archive has none, from the Python package of the
    same source."""
    paths = importlib.metadata.files(library.python) or [] if library.python else []
    return {
        f"vendor/{library.python}-{path.name}": Path(str(path.locate())).read_bytes()
        for path in paths
        if path.name.upper().startswith(("LICENSE", "THIRDPARTYNOTICES"))
    }


def scene(robot: Robot) -> str:
    """The robot on a flat floor as MJCF. Raises InputError if it collides with meshes."""
    spec = robot.on_floor()
    if spec.compile().nmesh:
        raise InputError(f"format=web: robot '{robot.name}' collides with meshes, not primitives")
    # the actuators' default, which MuJoCo before 3.17 does not know
    return str(spec.to_xml()).replace(' input="pos"', "")


def settings(robot: Robot, contract: BundleContract, name: str) -> dict[str, Any]:
    """What the page needs beside bundle.json: the home pose, the largest rate of the commands
    [1/s], and the shapes to draw with the bodies that they are fixed to."""
    simulated = SimulatedRobot(robot)
    simulated.reset()
    model = robot.model()
    ramp_s = SafetyConfig().command_ramp_s
    return {
        "policy": name,
        "home_qpos": simulated.data.qpos.tolist(),
        "command_rate": [max(map(abs, command.range)) / ramp_s for command in contract.commands],
        "bodies": moving_bodies(model),
        "shapes": shapes(model, robot.foot_bodies),
        "colours": {kind: f"rgb{rgb}" for kind, rgb in COLOURS.items()},
    }


def licences(robot: Robot, contract: BundleContract, name: str) -> str:
    """The content of LICENCES.txt."""
    lines = [f"page: npmp {__version__}, Apache-2.0"]
    for library in LIBRARIES:
        files = ", ".join(f"vendor/{part}" for part in library.files.values())
        lines.append(f"{library.spec}: {library.licence}: {files}")
    lines.append(f"{GRAPH} ({name}): recordings of {contract.data}: {'; '.join(contract.licence)}")
    lines.append(f"robot.xml ({robot.name}): {robot.source}: {robot.licence}")
    return "\n".join(lines) + "\n"
