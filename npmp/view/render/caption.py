"""Captions of a film: title, names of marks, and velocities."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from npmp.view.render.drawing import ACHIEVED, COMMANDED
from npmp.view.render.shot import HALF, Camera, Shot, smoothed

INK = (32, 36, 42, 255)
FAINT = (90, 96, 104, 255)
MARK = (200, 20, 40, 255)
PAPER = (255, 255, 255, 190)
# font size relative to the image's height, and its minimum [pixels]
FONT_SHARE = 0.040
MIN_FONT = 10


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans of matplotlib, or Pillow's default font."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    origin = getattr(find_spec("matplotlib"), "origin", None)  # slow to import
    path = Path(origin or "").parent / "mpl-data" / "fonts" / "ttf" / name
    result = ImageFont.truetype(str(path), size) if path.is_file() else ImageFont.load_default(size)
    # for the type checker
    assert isinstance(result, ImageFont.FreeTypeFont)
    return result


class Caption:
    """Adds the captions to the frames of a shot."""

    def __init__(self, shot: Shot, camera: Camera, size: tuple[int, int]):
        """camera: over the rendered frames."""
        self.shot = shot
        self.camera = camera
        self.size = size
        self.font_size = max(MIN_FONT, round(FONT_SHARE * size[1]))
        self.command = shot.clip.command
        achieved = shot.clip.achieved
        self.achieved = None if achieved is None else smoothed(achieved, shot.clip.rate_hz)
        self.title = self._title()

    def apply(self, picture: npt.NDArray[np.uint8], t: int) -> npt.NDArray[np.uint8]:
        """The image (height, width, 3) of the clip's frame t with captions."""
        image = Image.fromarray(picture).convert("RGBA")
        if self.title is not None:
            image.alpha_composite(self.title)
        if self.shot.marks:
            image.alpha_composite(self._names())
        if self.command is not None and self.achieved is not None and self.shot.has("robot"):
            image.alpha_composite(self._velocities(t))
        return np.asarray(image.convert("RGB"))

    def _title(self) -> Image.Image | None:
        """Title and note, in the upper left corner."""
        title = font(round(1.25 * self.font_size), True)
        note = font(self.font_size)
        lines = [(self.shot.title, title, INK), (self.shot.note, note, FAINT)]
        lines = [line for line in lines if line[0]]
        if not lines:
            return None
        sheet = Image.new("RGBA", self.size)
        pad = round(0.6 * self.font_size)
        pen = ImageDraw.Draw(sheet)
        tall = sum(round(1.35 * face.size) for _, face, _ in lines)
        wide = max(pen.textlength(text, font=face) for text, face, _ in lines)
        box = (pad, pad, 3 * pad + wide, 2 * pad + tall)
        pen.rounded_rectangle(box, radius=pad, fill=PAPER)
        y = pad + 0.5 * pad
        for text, face, ink in lines:
            pen.text((2 * pad, y), text, font=face, fill=ink)
            y += round(1.35 * face.size)
        return sheet

    def _names(self) -> Image.Image:
        """Discs at the marks, with names at the nearer side of the image that do not overlap."""
        small = round(0.7 * self.font_size)
        sheet = Image.new("RGBA", self.size)
        face = font(small)
        pen = ImageDraw.Draw(sheet)
        radius = 0.35 * small
        middle = 0.5 * self.size[0]
        # bottom of the last name, left and right
        lowest = {-1: 0.0, 1: 0.0}
        pixels = {name: self._pixel(mark) for name, mark in self.shot.marks.items()}
        for name, (x, y) in sorted(pixels.items(), key=lambda item: item[1][1]):
            side = 1 if x > middle else -1
            wide = pen.textlength(name, font=face)
            beside = x + side * 2.5 * small
            height = max(y, lowest[side] + 1.1 * small)
            lowest[side] = height
            pen.line((x, y, beside, height), fill=FAINT, width=2)
            left = beside if side > 0 else beside - wide
            box = (left - 3, height - 0.6 * small, left + wide + 3, height + 0.6 * small)
            pen.rectangle(box, fill=PAPER)
            pen.text((left, height), name, font=face, fill=INK, anchor="lm")
        for x, y in pixels.values():
            disc = (x - radius, y - radius, x + radius, y + radius)
            pen.ellipse(disc, fill=MARK, outline=(255, 255, 255, 255), width=2)
        return sheet

    def _pixel(self, point: npt.NDArray[np.float64]) -> tuple[float, float]:
        """The pixel of a point (3,) in the world [m] in the first frame."""
        camera = self.camera
        right, up, ahead = camera.axes @ (point - camera.lookat[0])
        scale = 0.5 * self.size[1] / HALF / (camera.distance + ahead)
        return 0.5 * self.size[0] + scale * right, 0.5 * self.size[1] - scale * up

    def _velocities(self, t: int) -> Image.Image:
        """A table of velocities in the upper right corner, below a title that reaches there."""
        assert self.command is not None and self.achieved is not None
        small = round(0.85 * self.font_size)
        sheet = Image.new("RGBA", self.size)
        pad = round(0.6 * self.font_size)
        face = font(small)
        pen = ImageDraw.Draw(sheet)
        line = round(1.4 * small)
        first = round(6.0 * small)
        column = round(4.9 * small)
        left = self.size[0] - 3 * pad - first - 3 * column
        box = None if self.title is None else self.title.getbbox()
        top = pad if box is None or box[2] < left else box[3] + pad // 2
        whole = (left, top, self.size[0] - pad, top + 3 * line + 0.9 * pad)
        pen.rounded_rectangle(whole, radius=pad, fill=PAPER)
        x = left + pad
        y = top + 0.5 * pad
        heads = ("forward m/s", "left m/s", "turn rad/s")
        tiny = font(round(0.78 * small))
        for k, head in enumerate(heads, 1):
            pen.text((x + first + k * column, y), head, font=tiny, fill=FAINT, anchor="ra")
        commanded = ("commanded", COMMANDED, self.command[t])
        for name, rgba, values in (commanded, ("achieved", ACHIEVED, self.achieved[t])):
            y += line
            colour = tuple(round(255 * part) for part in rgba)
            pen.ellipse((x, y + 0.3 * small, x + 0.6 * small, y + 0.9 * small), fill=colour)
            pen.text((x + small, y), name, font=face, fill=INK)
            for k, value in enumerate(values, 1):
                text = f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
                text = text.replace("-", "\N{MINUS SIGN}")
                pen.text((x + first + k * column, y), text, font=face, fill=INK, anchor="ra")
        return sheet
