"""Reading models: URDFs with packages and comments, templates, and assets that are no files."""

from __future__ import annotations

from pathlib import Path

from npmp.robots.model import read_spec
from tests.refusals import refusal

LINKS = '<link name="a"/><link name="b"/>'
JOINT = '<joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint>'


def test_templates_are_named(tmp_path: Path) -> None:
    robot = '<robot xmlns:xacro="x"><xacro:property name="r"/></robot>'
    for name in ("r.xacro", "r.urdf"):
        (tmp_path / name).write_text(robot)
        refusal("xacro", read_spec, tmp_path / name)


def test_comments_of_a_urdf_are_read_as_mujoco_reads_them(tmp_path: Path) -> None:
    """A comment within another ends at the first "-->"."""
    urdf = tmp_path / "m.urdf"
    urdf.write_text(f'<robot name="r"><!-- <!-- -->{LINKS}{JOINT}</robot>')
    assert read_spec(urdf).body("b") is not None
