"""Models that declare more than a robot needs, and files that are none, are refused before MuJoCo
sees them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from npmp import robots
from npmp.robots import excess
from npmp.robots.model import read_spec
from tests.refusals import refusal


def model(folder: Path, *, inside: str = "", beside: str = "", name: str = "m.xml") -> Path:
    path = folder / name
    body = f'<body name="b"><freejoint/><geom size="1"/>{inside}</body>'
    path.write_text(f"<mujoco><worldbody>{body}</worldbody>{beside}</mujoco>")
    return path


REPLICATES = '<replicate count="101">' * 3 + "<site/>" + "</replicate>" * 3


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ('<composite type="cable" count="1000 1 1"/>', "composite of count 1,000; at most 256"),
        ('<flexcomp name="f" type="grid" count="1e3 1e3 1e3"/>', "flexcomp of count 1,000,000,000"),
        ('<replicate count="5000"><site/><site/></replicate>', "more than 10,000 elements"),
        (REPLICATES, "more than 10,000 elements"),
        ("<site/>" * 10_001, "more than 10,000 elements"),
        ("<body>" * 300 + "</body>" * 300, "200 deep"),
    ],
)
def test_excess_in_bodies_is_refused(tmp_path: Path, inside: str, message: str) -> None:
    refusal(message, read_spec, model(tmp_path, inside=inside))


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ('<hfield name="h" nrow="99999" ncol="99999"/>', "hfield of nrow x ncol 9,999,800,001"),
        ('<texture builtin="flat" width="99999" height="99999"/>', "texture of width x height"),
        ('<mesh name="a" file="pipe"/>', "pipe is no regular file"),
        ('<texture name="t" type="2d" file="wide.png"/>', "a picture of 100,000 x 100,000"),
        ('</asset><compiler meshdir="/dev"/><asset><mesh file="zero"/>', "/dev/zero is no regular"),
        ('</asset><size memory="100G"/><asset>', "size of memory 107,374,182,400"),
        ('</asset><size nuserdata="1000000000"/><asset>', "size of nuserdata"),
        ('</asset><sensor><user dim="1000000000"/></sensor><asset>', "user of dim"),
        ('</asset><include file="m.xml"/><asset>', r"m\.xml: includes itself"),
        ('</asset><include file="pipe"/><asset>', "pipe is no regular file"),
        ("<mesh>", "not a valid MJCF: mismatched tag"),
    ],
)
def test_excess_beside_them_is_refused(tmp_path: Path, beside: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    size = struct.pack(">II", 100_000, 100_000)
    (tmp_path / "wide.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size)
    refusal(message, read_spec, model(tmp_path, beside=f"<asset>{beside}</asset>"))


def test_entities_and_models_that_are_no_files_are_refused(tmp_path: Path) -> None:
    path = model(tmp_path)
    path.write_text('<!DOCTYPE m [<!ENTITY a "aaaa">]>' + path.read_text())
    refusal("declares the entity 'a'", read_spec, path)
    path.write_bytes(b'<mujoco model="\xf2"/>')
    refusal("mujoco's model is not UTF-8", read_spec, path)
    os.mkfifo(tmp_path / "pipe.xml")
    for other in (tmp_path / "pipe.xml", tmp_path):
        refusal(r"no regular file|is a folder", read_spec, other)
    refusal("no MJCF file", read_spec, tmp_path / "gone.xml")


def test_files_that_multiply_are_refused(tmp_path: Path) -> None:
    """Models that attach models, and includes in a circle."""
    model(tmp_path, inside="<site/>" * 50, name="0.xml")
    for i in range(1, 4):
        model(
            tmp_path,
            inside='<frame><attach model="n" body="b" prefix="p"/></frame>' * 30,
            beside=f'<asset><model name="n" file="{i - 1}.xml"/></asset>',
            name=f"{i}.xml",
        )
    refusal("more than 10,000 elements", excess.refuse_excess, tmp_path / "3.xml")
    for here, there in (("a", "b"), ("b", "a")):
        model(tmp_path, beside=f'<include file="{there}.xml"/>', name=f"{here}.xml")
    refusal("includes itself", excess.refuse_excess, tmp_path / "a.xml")


def test_what_a_robot_needs_passes(tmp_path: Path) -> None:
    for name in robots.names():
        if robots.is_at_hand(name):
            excess.refuse_excess(robots.load(name).mjcf)
    inside = '<replicate count="4" offset="1 0 0"><site/></replicate>'
    inside += '<composite prefix="c" type="cable" count="9 1 1"/>'
    excess.refuse_excess(
        model(tmp_path, inside=inside, beside='<size nuser_body="3" memory="10M"/>')
    )


def test_what_follows_the_root_is_not_read(tmp_path: Path) -> None:
    """As MuJoCo has it: a second end tag, or words."""
    path = model(tmp_path)
    for junk in ("</mujoco>", "junk &", "<mujoco/>"):
        path.write_text(path.read_text() + junk)
        assert read_spec(path).body("b") is not None


def test_templates_are_named(tmp_path: Path) -> None:
    robot = '<robot xmlns:xacro="x"><xacro:property name="r"/></robot>'
    for name in ("r.xacro", "r.urdf"):
        (tmp_path / name).write_text(robot)
        refusal("a xacro template; expand it first", read_spec, tmp_path / name)


def test_a_mesh_that_git_lfs_did_not_download_is_named(tmp_path: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0f' * 32}\nsize 54321\n"
    (tmp_path / "shank.stl").write_text(pointer)
    mesh = '<asset><mesh name="shank" file="shank.stl"/></asset>'
    message = r"shank.stl is a Git LFS pointer, not the file \(54,321 bytes\): git lfs pull"
    refusal(message, read_spec, model(tmp_path, beside=mesh))


def test_comments_are_read_as_mujoco_reads_them(tmp_path: Path) -> None:
    """One within another ends at the first "-->", and what stands in an attribute is none."""
    path = model(tmp_path, beside="<!-- <size/>\n<!-- <site/> --> -->")
    assert read_spec(path).body("b") is not None
    kept = b"""<a b='<!--'>\n<![CDATA[<!-- x -->]]><?p <!-- ?></a>"""
    assert excess.without_comments(kept) == kept
    assert excess.without_comments(b"<a><!-- <b/>\n --></a>") == b"<a>         \n    </a>"
    # a comment that a tag opens hides no element from being counted
    hiding = '<site name="<!--"/><composite type="cable" count="999 1 1"/><site name="-->"/>'
    refusal("not a valid MJCF", read_spec, model(tmp_path, inside=hiding))
    for unclosed in (b"<!-- " * 100_000, b"<a b='" * 100_000, b"<" * 100_000):
        assert excess.without_comments(unclosed) == unclosed

    urdf = tmp_path / "m.urdf"
    links = '<link name="a"/><!-- <!-- --> --><link name="b"/>'
    joint = '<joint name="j" type="fixed"><parent link="a"/><child link="b"/></joint>'
    urdf.write_text(f'<robot name="r">{links}{joint}</robot>')
    assert read_spec(urdf).body("b") is not None


def test_nan_is_no_number(tmp_path: Path) -> None:
    for word in ("nan", "-NaN", "nan(1)"):
        inside = f'<geom name="g" size="1" mass="{word}"/>'
        refusal("geom 'g': mass=.*must be numbers", read_spec, model(tmp_path, inside=inside))
    assert read_spec(model(tmp_path, inside='<site name="nan"/>')).site("nan") is not None
