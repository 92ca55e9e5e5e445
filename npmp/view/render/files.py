"""Frames into files: mp4, GIF, WebP or a still, atomically, and no larger than wanted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mocap_data.errors import InputError, importing
from mocap_data.files import atomic_path
from npmp.view.render.film import Frames

# From the best on: what each format's writer is given.
QUALITY: dict[str, tuple[int, ...]] = {
    ".webp": (80, 70, 60, 45, 30, 18),
    # colours
    ".gif": (256, 128, 64, 32),
    # x264's constant rate factor
    ".mp4": (20, 24, 28, 32, 36),
    ".png": (0,),
}
FORMATS = tuple(QUALITY)


def check_format(out: Path) -> str:
    """The format of a file by its name, ".webp" say.

    Raises:
      InputError: for one that cannot be written here.
    """
    suffix = out.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(
            f"out={out}: the name of a film ends in {', '.join(FORMATS[:-1])}, of a still in .png"
        )
    if suffix == ".mp4":
        needs = "an mp4 needs imageio-ffmpeg: pip install 'npmp[render]'; .webp and .gif do not"
        with importing(f"out={out}: {needs}"):
            import imageio_ffmpeg  # noqa: F401
    return suffix


def write(out: Path, frames: Frames, *, max_mb: float | None = None) -> tuple[int, int]:
    """Write a film; of a still (.png) the first frame. Returns its size in bytes and its quality.

    max_mb: at most so many millions of bytes, by a lower quality.

    Raises:
      InputError: where that does not suffice, or as `check_format`.
    """
    suffix = check_format(out)
    with atomic_path(out) as path:
        for quality in QUALITY[suffix]:
            size = _encode(path, suffix, frames, quality)
            if max_mb is None or size <= 1e6 * max_mb:
                return size, quality
        raise InputError(
            f"max_mb={max_mb:g}: at the least quality {out.name} has {size / 1e6:.2f} MB; make it "
            "shorter (seconds=) or smaller (size=, fps=)"
        )


def _encode(path: Path, suffix: str, frames: Frames, quality: int) -> int:
    """Write the frames; returns the file's size."""
    pictures = frames.pictures
    fps = frames.fps
    if suffix == ".png":
        Image.fromarray(pictures[0]).save(path, "PNG", optimize=True)
    elif suffix == ".mp4":
        _mp4(path, pictures, fps, quality)
    else:
        # times of frames are whole milliseconds, or hundredths of a second in a GIF: none is lost
        # over the film
        unit = 10 if suffix == ".gif" else 1
        ends = np.round(np.arange(len(pictures) + 1) * 1000.0 / fps / unit).astype(int) * unit
        options: dict[str, Any] = {"save_all": True, "duration": np.diff(ends).tolist(), "loop": 0}
        if suffix == ".webp":
            images: Iterator[Image.Image] = map(Image.fromarray, pictures)
            options |= {"quality": quality, "method": 4}
        else:
            images = _paletted(pictures, quality)
            options |= {"optimize": False, "disposal": 1}
        next(images).save(path, suffix[1:].upper(), append_images=images, **options)
    return os.path.getsize(path)


def _paletted(pictures: np.ndarray, colours: int) -> Iterator[Image.Image]:
    """Frames in one palette for all, made of some of them."""
    some = np.linspace(0, len(pictures) - 1, min(12, len(pictures))).round().astype(int)
    chosen = pictures[some, ::2, ::2]
    palette = Image.fromarray(chosen.reshape(-1, *chosen.shape[2:])).quantize(colours)
    for picture in pictures:
        yield Image.fromarray(picture).quantize(palette=palette, dither=Image.Dither.NONE)


def _mp4(path: Path, pictures: np.ndarray, fps: float, factor: int) -> None:
    import imageio_ffmpeg

    size = (pictures.shape[2], pictures.shape[1])
    stream = imageio_ffmpeg.write_frames(
        str(path),
        size,
        fps=fps,
        codec="libx264",
        quality=None,
        macro_block_size=2,
        output_params=["-crf", str(factor), "-preset", "slow", "-movflags", "+faststart"],
        ffmpeg_log_level="error",
    )
    stream.send(None)
    try:
        for picture in pictures:
            stream.send(np.ascontiguousarray(picture))
    finally:
        stream.close()
