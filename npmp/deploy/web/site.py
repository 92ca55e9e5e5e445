"""The folder: page, packages, and of each policy its bundle, of each robot its scenes and looks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mocap_data.errors import InputError
from mocap_data.files import atomic_path
from npmp import __version__, robots
from npmp.deploy.bundle import CONTRACT, GRAPH, Bundle
from npmp.deploy.simulated import SimulatedRobot
from npmp.deploy.trial import COMMAND, refuse_other_model
from npmp.deploy.web.packages import Package, fetched, licences, pinned
from npmp.deploy.web.scene import looks, scene_xml
from npmp.robots import Robot
from npmp.sim.terrain import PERIOD_M, Terrain, TerrainConfig

PAGE = Path(__file__).with_name("page")
SITE = "site.json"
GROUNDS = ("flat", "rough")


class Told(Protocol):
    """A policy's or a bundle's contract."""

    @property
    def command(self) -> list[str]: ...

    @property
    def besides(self) -> list[str]: ...


@dataclass(frozen=True)
class Walker:
    """A walking policy to put on the page."""

    name: str  # what it is called there; its folder's name
    bundle: Bundle
    # the rough ground that it was trained on, None: it was flat
    terrain: TerrainConfig | None = None

    def __post_init__(self) -> None:
        refuse_other_commands(self.name, self.bundle.contract)


def refuse_other_commands(name: str, contract: Told) -> None:
    """Raises InputError for a policy that is not told how to walk, or more than that."""
    if contract.besides:
        raise InputError(
            f"a page has no map of the ground and no clock: {name} is told of {contract.besides[0]}, ..."
        )
    if (told := contract.command) != COMMAND:
        raise InputError(
            f"a page is for policies that are told {', '.join(COMMAND)}; {name} is told {', '.join(told)}"
        )


def write(folder: Path, walkers: Sequence[Walker], *, cache: Path | None = None) -> int:
    """Write the page with these policies. A robot stands on rough ground, too, where one of its
    policies does.

    Args:
      cache: as in `npmp.deploy.web.packages.fetched`.

    Returns: how many bytes the folder's files have.

    Raises:
      InputError: where a package cannot be had or differs from the pinned one, a bundle is of
        another robot than this npmp has, or a robot's scene cannot be told in XML. Nothing has been
        written then.
    """
    packages, content = pinned(), dict[str, bytes]()
    for package in packages:
        content |= {f"vendor/{name}": data for name, data in fetched(package, cache).items()}
        content |= {f"licences/{name}": data for name, data in licences(package).items()}
    content["licences/README.txt"] = _about_licences(packages, walkers).encode()
    content |= {path.name: path.read_bytes() for path in sorted(PAGE.iterdir()) if path.is_file()}
    for walker in walkers:
        for name in (CONTRACT, GRAPH):
            content[f"policies/{walker.name}/{name}"] = (walker.bundle.folder / name).read_bytes()
    robot_files, told = _robots(walkers)
    content |= robot_files
    loaded = sum(len(data) for name, data in content.items() if name.startswith("vendor/"))
    versions = {package.name: package.version for package in packages} | {"npmp": __version__}
    content[SITE] = _json(
        {
            "versions": versions,
            "robots": told,
            "policies": [_about(walker) for walker in walkers],
            "loaded_bytes": loaded,
        }
    )
    for name, data in content.items():
        with atomic_path(folder / name) as path:
            path.write_bytes(data)
    return sum(len(data) for data in content.values())


def _json(content: Any) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def _about(walker: Walker) -> dict[str, Any]:
    """What the page is told of a policy besides its bundle."""
    ground = GROUNDS[walker.terrain is not None]
    return {"name": walker.name, "robot": walker.bundle.contract.robot, "ground": ground}


def _robots(walkers: Sequence[Walker]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Files of the robots, by path, and what site.json says of each."""
    files, told = dict[str, bytes](), dict[str, Any]()
    for walker in walkers:
        contract = walker.bundle.contract
        robot = robots.load(contract.robot)
        refuse_other_model(contract, robot)
        at = f"robots/{robot.name}"
        if robot.name not in told:
            files |= {
                f"{at}/flat.xml": scene_xml(robot).encode(),
                f"{at}/looks.json": _json(looks(robot)),
            }
            told[robot.name] = {**_standing(robot), "grounds": {"flat": None}}
        if walker.terrain is not None and "rough" not in told[robot.name]["grounds"]:
            terrain = Terrain(_unseen(walker.terrain))
            files[f"{at}/rough.xml"] = scene_xml(robot, terrain.add_to_scene).encode()
            told[robot.name]["grounds"]["rough"] = _field(terrain)
    return files, told


def _standing(robot: Robot) -> dict[str, Any]:
    """How it stands: qpos of the home pose, where its feet are in the root's horizontal plane [m],
    its weight [N]."""
    simulated = SimulatedRobot(robot)
    simulated.place()  # to the last bit, on which it depends whether feet touch the ground at first
    data, model = simulated.data, simulated.model
    feet = [
        (data.body(body).xpos + points @ data.body(body).xmat.reshape(3, 3).T)[:, :2]
        for body, points in zip(robot.foot_bodies, robot.foot_points)
    ]
    weight = float(model.body_mass.sum() * np.linalg.norm(model.opt.gravity))
    return {
        "home_qpos": data.qpos.tolist(),
        "feet": np.concatenate(feet).tolist(),
        "weight": weight,
    }


def _unseen(config: TerrainConfig) -> TerrainConfig:
    """One field as hard as the hardest of these, that was none of them."""
    return replace(config, fields=1, rows=1, seed=config.seed + 1)


def _field(terrain: Terrain) -> dict[str, Any]:
    """Where the ground repeats itself [m], and a gentle place of it to begin at."""
    corner, place = terrain.corner[0], terrain.places[0, 0]
    return {
        "period": PERIOD_M,
        "cell": terrain.cell,
        "corner": corner.tolist(),
        "place": place.tolist(),
    }


def _about_licences(packages: Sequence[Package], walkers: Sequence[Walker]) -> str:
    """licences/README.txt."""
    lines = [
        "What this folder is made of, and under which licences",
        "",
        "The page: Apache-2.0, from npmp " + __version__,
        *(
            f"{p.name} {p.version}: {p.licence}, in vendor/{', vendor/'.join(p.files.values())}"
            for p in packages
        ),
        "",
    ]
    for walker in walkers:
        contract = walker.bundle.contract
        said = "; ".join(contract.licence) or "not said"
        lines.append(
            f"policies/{walker.name}: trained with recordings of {contract.data or 'unknown data'}: {said}"
        )
    for name in dict.fromkeys(walker.bundle.contract.robot for walker in walkers):
        robot = robots.load(name)
        lines.append(f"robots/{name}: {robot.source}: {robot.licence}")
    return "\n".join(lines) + "\n"
