"""Write frames to files: mp4, GIF, WebP or a still, atomically and within a size limit."""

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

# quality settings by format, the best first
QUALITY: dict[str, tuple[int, ...]] = {
    ".webp": (80, 70, 60, 45, 30, 18),
    # number of colours
    ".gif": (256, 128, 64, 32),
    # constant rate factor of x264
    ".mp4": (20, 24, 28, 32, 36),
    ".png": (0,),
}
FORMATS = tuple(QUALITY)


def check_format(out: Path) -> str:
    """The format of a file by its suffix, such as ".webp".

    Raises:
      InputError: for a format that cannot be written here.
    """
    suffix = out.suffix.lower()
    if suffix not in FORMATS:
        raise InputError(
            f"out={out}: expected a name in {', '.join(FORMATS[:-1])}, or in .png for a still"
        )
    if suffix == ".mp4":
        needs = "an mp4 needs imageio-ffmpeg: pip install 'npmp[render]'; .webp and .gif do not"
        with importing(f"out={out}: {needs}"):
            import imageio_ffmpeg  # noqa: F401
    return suffix


def write(out: Path, frames: Frames, *, max_mb: float | None = None) -> tuple[int, int]:
    """Write a film, or the first frame as a still (.png). Returns its size [bytes] and quality.

    max_mb: limit of the size [1e6 bytes], reached by a lower quality.

    Raises:
      InputError: if the lowest quality exceeds it, or as `check_format`.
    """
    suffix = check_format(out)
    with atomic_path(out) as path:
        for quality in QUALITY[suffix]:
            size = _encode(path, suffix, frames, quality)
            if max_mb is None or size <= 1e6 * max_mb:
                return size, quality
        raise InputError(
            f"max_mb={max_mb:g}: {out.name} has {size / 1e6:.2f} MB at the lowest quality; reduce "
            "seconds=, size= or fps="
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
        # durations are multiples of 1 ms, of 10 ms in a GIF; rounding does not accumulate
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
    """Frames with a common palette, of some of them."""
    some = np.linspace(0, len(pictures) - 1, min(12, len(pictures))).round().astype(int)
    sample = pictures[some, ::2, ::2]
    palette = Image.fromarray(sample.reshape(-1, *sample.shape[2:])).quantize(colours)
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
