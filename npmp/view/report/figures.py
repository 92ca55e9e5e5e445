"""Charts as SVG inside the page, drawn by matplotlib: lines, histograms, gait diagrams.

Each function takes arrays and returns a `Chart`. Colours are the page's CSS variables
(`assets/page.css` has a light and a dark value of each). The page's script reads the curves from
the SVG for its hover read-out and to follow the replay. Long curves are thinned to `MAX_POINTS`,
keeping the extremes of each stretch.
"""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from npmp.view.report.parts import FOOT_CSS, Chart, number, visible

MAX_POINTS = 600
# width of charts that fill the page [pixels]
WIDTH = 940
# margin right of the axes [pixels]
RIGHT = 10
# margin below the axes [pixels]
BOTTOM = 32
FloatArray = npt.NDArray[np.float64]
Range = tuple[float, float]

# colours in matplotlib by CSS variable, which replaces them; they must differ
COLOURS = {
    "robot": "#0072b2",
    "ref": "#8a8f96",
    "other": "#b07a00",
    "third": "#7b4fa3",
    "lf": "#d55e00",
    "rf": "#009e73",
    "lh": "#c4609a",
    "rh": "#c99700",
    "ink": "#18202a",
    "soft": "#5b6673",
    "line": "#dfe3e8",
    "grid": "#e9ecf0",
    "lost-ink": "#a5401f",
}
WIDTHS = {"ref": 2.2, "other": 1.2}
DASHED = {"color": COLOURS["lost-ink"], "linewidth": 1, "linestyle": (0, (4, 3))}
LOST: Any = {"color": COLOURS["lost-ink"], "alpha": 0.09, "linewidth": 0}
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "npmp",
    "text.usetex": False,
    "text.parse_math": False,
    "font.size": 11.0,
    "text.color": COLOURS["soft"],
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    "axes.edgecolor": COLOURS["soft"],
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.xmargin": 0.0,
    "axes.ymargin": 0.0,
    "grid.color": COLOURS["grid"],
    "xtick.color": COLOURS["soft"],
    "xtick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.color": COLOURS["soft"],
    "ytick.major.size": 0,
    "ytick.major.pad": 5,
    "ytick.minor.size": 0,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Line:
    """One curve: its name, x (N,), y (N,) with NaN for gaps, and the CSS class of its colour."""

    name: str
    x: npt.ArrayLike
    y: npt.ArrayLike
    css: str = "robot"


# ---- drawing


class Drawing:
    """A figure of `size` pixels with axes in `box` (left, top, width, height)."""

    def __init__(self, width: float, height: float, left: float, top: float) -> None:
        from matplotlib.figure import Figure

        self.size = (width, height)
        self.box = (left, top, width - left - RIGHT, height - top - BOTTOM)
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        rectangle = (left / width, BOTTOM / height, self.box[2] / width, self.box[3] / height)
        self.axes: Any = self.figure.add_axes(rectangle)
        self.figure.patch.set_visible(False)
        self.axes.patch.set_visible(False)
        self.tags: dict[str, dict[str, str]] = {}

    def tag(self, artist: Any, css: str, name: str = "") -> None:
        """Set the CSS class of an artist, and its name in the hover read-out."""
        artist.set_gid(f"tag{len(self.tags)}")
        self.tags[artist.get_gid()] = {"class": css, "data-name": visible(name)}

    def text(self, x: float, y: float, text: str, colour: str, **options: Any) -> None:
        """Text at a position of the axes."""
        artist = self.axes.text(x, y, visible(text), color=COLOURS[colour], **options)
        self.tag(artist, f"label {colour}")

    def label_x(self, text: str) -> None:
        """The label under the axes."""
        x = (self.box[0] + self.box[2] / 2) / self.size[0]
        y = 2 / self.size[1]
        self.figure.text(x, y, text, ha="center", va="bottom")

    def ticks(self, axis: Any, count: int, suffix: str = "") -> None:
        """Round ticks on an axis, about `count`."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        def label(value: float, _: object) -> str:
            return tick_label(value, float(np.ptp(axis.get_view_interval()))) + suffix

        axis.set_major_locator(MaxNLocator(round(1.6 * count), steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(label))

    def shade_lost(self, lost_after: float | None) -> None:
        """Shade the time after the robot was lost."""
        start, stop = self.axes.get_xlim()
        if lost_after is not None and lost_after < stop:
            self.tag(self.axes.axvspan(max(lost_after, start), stop, **LOST), "lost")

    def svg(self, label: str, **data: str) -> Markup:
        """The SVG element for the page. data: its data- attributes."""
        out = io.BytesIO()
        with warnings.catch_warnings():
            # characters that matplotlib's font lacks; the browser's font may have them
            warnings.simplefilter("ignore")
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        root = ET.fromstring(out.getvalue())
        for parent in list(root.iter()):
            for child in [c for c in parent if c.tag.endswith(("metadata", "style"))]:
                parent.remove(child)
        for element in root.iter():
            _plain(element, self.tags)
        view = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": visible(label)}
        root.attrib = view | {f"data-{key}": visible(value) for key, value in data.items()}
        if data:
            root.attrib["class"] = "plot"
        return Markup(ET.tostring(root, encoding="unicode"))


_VARIABLES = {colour: f"var(--{name})" for name, colour in COLOURS.items()}
_HEX = re.compile("|".join(_VARIABLES))
# rounds to a tenth of a pixel
_DIGITS = re.compile(r"(\d\.\d)\d+")
_GAP = re.compile(r"\s*([MLz])\s*")


def _plain(element: ET.Element, tags: dict[str, dict[str, str]]) -> None:
    """Convert an element of matplotlib's SVG: no namespaces, no ids, the page's colours."""
    element.tag = element.tag.rpartition("}")[2]
    own = element.attrib.get("id", "")
    element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    if not re.fullmatch(r"[pm][0-9a-f]{8,}", own):  # ids of clip paths and markers are referenced
        element.attrib.pop("id", None)
    if "style" in element.attrib:
        element.attrib["style"] = _HEX.sub(
            lambda match: _VARIABLES[match[0]], element.attrib["style"]
        )
    if "d" in element.attrib:
        element.attrib["d"] = _GAP.sub(r"\1", _DIGITS.sub(r"\1", element.attrib["d"]))
    element.attrib |= {key: value for key, value in tags.get(own, {}).items() if value}


@contextmanager
def _drawing(width: float, height: float, left: float = 46, top: float = 8) -> Iterator[Drawing]:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield Drawing(width, height, left, top)


def tick_label(value: float, span: float) -> str:
    """A short tick label, with k and M for large spans."""
    value = 0.0 if abs(value) < 1e-9 * span else value
    text = f"{value:.6g}"
    if abs(value) >= 1e9 or 0 < abs(value) < 1e-4:
        text = f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    elif span >= 1e6 and value:
        return f"{value / 1e6:g}M"
    elif span >= 1e4 and value:
        return f"{value / 1e3:g}k"
    return text.replace("-", "\N{MINUS SIGN}")


def thin(x: FloatArray, y: FloatArray, limit: int = MAX_POINTS) -> tuple[FloatArray, FloatArray]:
    """At most `limit` of the points (N,): the first, the last, and the lowest, highest and a NaN of
    each stretch."""
    n = len(x)
    if n <= limit:
        return x, y
    keep = {0, n - 1}
    for stretch in np.array_split(np.arange(n), max((limit - 2) // 3, 1)):
        finite = np.isfinite(y[stretch])
        valid = stretch[finite]
        gaps = stretch[~finite]
        if valid.size:
            keep |= {int(valid[y[valid].argmin()]), int(valid[y[valid].argmax()])}
        if gaps.size:
            keep.add(int(gaps[0]))
    index = np.array(sorted(keep))
    return x[index], y[index]


# ---- lines


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str = "",
    x_label: str = "time (s)",
    width: int = 460,
    height: int = 170,
    log: bool = False,
    x_range: Range | None = None,
    y_range: Range | None = None,
    lost_after: float | None = None,
    clip: int | None = None,
    square: bool = False,
) -> Chart:
    """One or more curves on common axes.

    Args:
      lines: drawn in this order, so the reference first.
      title, unit: the caption.
      log: logarithmic y; values not above zero are left out.
      x_range, y_range: of the axes; None: of the data.
      lost_after: x from which the chart is shaded, as the robot was lost.
      clip: the replay's clip whose time is x; chart and replay follow each other.
      square: the same scale for both axes, as on a map.
    """
    data = []
    for line in lines:
        x, y = (np.array(v, dtype=np.float64).reshape(-1) for v in (line.x, line.y))
        y[~(np.isfinite(x) & np.isfinite(y)) | ((y <= 0) if log else False)] = np.nan
        data.append((line, *thin(x, y)))
    with _drawing(width, height) as drawing:
        axes = drawing.axes
        box = drawing.box
        (x0, x1), (y0, y1) = _ranges(data, x_range, y_range, log)
        if square:
            (x0, x1), (y0, y1) = same_scale((x0, x1), (y0, y1), box[2] / box[3])
        _axes(drawing, (x0, x1), (y0, y1), log)
        drawing.shade_lost(lost_after)
        if lost_after is not None and lost_after < x1:
            side = "right" if lost_after > x0 + 0.75 * (x1 - x0) else "left"
            style = {"ha": side, "va": "top", "transform": axes.get_xaxis_transform()}
            text = f" lost at {number(lost_after)} s "
            drawing.text(max(lost_after, x0), 1.0, text, "lost-ink", **style)
        for line, x, y in data:
            _curve(drawing, line, x, y)
        if not any(np.isfinite(y).any() for _, _, y in data):
            middle = {"ha": "center", "va": "center", "transform": axes.transAxes}
            drawing.text(0.5, 0.5, "no finite values", "lost-ink", **middle)
        drawing.label_x(x_label)
        svg = drawing.svg(title, **_scale(drawing, clip, unit, x_label))
    legend = [(line.name, line.css) for line in lines] if len(lines) > 1 else []
    return Chart(title, unit, svg, legend)


def wide(title: str, unit: str, *lines: Line, height: int = 165, **look: Any) -> Chart:
    """A `line_chart` that fills the page."""
    return line_chart(lines, title=title, unit=unit, width=WIDTH, height=height, **look)


def same_scale(x: Range, y: Range, ratio: float) -> tuple[Range, Range]:
    """The ranges widened about their centres to the same scale. ratio: width / height."""
    span = max(x[1] - x[0], ratio * (y[1] - y[0]))
    half = (span / 2, span / ratio / 2)
    middle = ((x[0] + x[1]) / 2, (y[0] + y[1]) / 2)
    wide = (middle[0] - half[0], middle[0] + half[0])
    return wide, (middle[1] - half[1], middle[1] + half[1])


def _curve(drawing: Drawing, line: Line, x: FloatArray, y: FloatArray) -> None:
    """Draw a curve with gaps; isolated points become dots."""
    colour = COLOURS[line.css]
    (artist,) = drawing.axes.plot(x, y, color=colour, linewidth=WIDTHS.get(line.css, 1.6))
    drawing.tag(artist, f"line {line.css}", name=line.name)
    finite = np.concatenate([[False], np.isfinite(y), [False]])
    isolated = finite[1:-1] & ~finite[:-2] & ~finite[2:]
    if isolated.any():
        drawing.axes.plot(
            x[isolated], y[isolated], ".", color=colour, markersize=7, markeredgewidth=0
        )


def _scale(
    drawing: Drawing, clip: int | None, unit: str = "", x_label: str = "time (s)"
) -> dict[str, str]:
    """Attributes for the page's script: the axes' box and ranges, and the replay's clip."""
    axes = drawing.axes
    numbers = {"box": drawing.box, "x": axes.get_xlim(), "y": axes.get_ylim()}
    attrs = {key: " ".join(f"{value:.9g}" for value in values) for key, values in numbers.items()}
    attrs |= {"log": str(int(axes.get_yscale() == "log")), "unit": unit, "xlabel": x_label}
    return attrs if clip is None else attrs | {"clip": str(clip)}


def _axes(drawing: Drawing, x: Range, y: Range, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes = drawing.axes
    axes.set_yscale("log" if log else "linear")
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.grid(axis="y", linewidth=1, clip_on=False)
    drawing.ticks(axes.xaxis, max(3, round(drawing.box[2] / 90)))
    if not log:
        drawing.ticks(axes.yaxis, 4)
        return
    subs = (1.0,) if y[1] > 100 * y[0] else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_label(value, y[1] - y[0])))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _ranges(
    data: Sequence[tuple[Any, ...]], x_range: Range | None, y_range: Range | None, log: bool
) -> tuple[Range, Range]:
    """The ranges of the axes, by default of the data (lines with their x and y); never empty."""
    x, y = (np.concatenate([np.zeros(0), *values]) for values in list(zip(*data, strict=True))[1:])
    x, y = x[np.isfinite(x)], y[np.isfinite(y)]
    x0, x1 = x_range or ((float(x.min()), float(x.max())) if x.size else (0.0, 1.0))
    if not x1 > x0:
        x0, x1 = x0 - 0.5, x0 + 0.5
    y0, y1 = y_range or _bounds(y, log)
    return (x0, x1), (y0, y1 if y1 > y0 else y0 + 1.0)


def _bounds(values: FloatArray, log: bool) -> Range:
    """The range of finite values with a margin; (0, 1) without values."""
    if not values.size:
        return (1e-1, 1.0) if log else (0.0, 1.0)
    low, high = float(values.min()), float(values.max())
    if log:
        return low / 1.2, high * 1.2
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = max(abs(high) * 0.1, 1e-3)
        return low - pad, high + pad
    pad = 0.06 * (high - low)
    # errors, heights and fractions are drawn from zero
    return (0.0 if 0 <= low < 0.5 * high else low - pad), high + pad


# ---- shares


def histogram(
    values: npt.ArrayLike,
    *,
    title: str,
    unit: str = "",
    threshold: float | None = None,
    bins: int = 40,
    top: float | None = None,
    least: float = 0.0,
    width: int = 330,
    height: int = 160,
) -> Chart:
    """Shares of values (N,) in bins from 0. The last bin includes all values above `top`, which is
    by default their 99.5th percentile, at least `least`.

    threshold: a value to mark.
    """
    value = np.asarray(values, dtype=np.float64).reshape(-1)
    value = value[np.isfinite(value)]
    with _drawing(width, height, left=40) as drawing:
        axes = drawing.axes
        if not value.size:
            axes.axis("off")
            drawing.text(0.5, 0.5, "no finite values", "lost-ink", ha="center", va="center")
            return Chart(title, unit, drawing.svg(title))
        most = top if top is not None else max(float(np.percentile(value, 99.5)), least)
        most = max(most, 0.0 if threshold is None else 1.1 * threshold) or 1.0
        counts, edges = np.histogram(np.clip(value, 0.0, most), bins, (0.0, most))
        shares = 100.0 * counts / len(value)
        look: dict[str, Any] = {"facecolor": COLOURS["robot"], "linewidth": 0, "fill": True}
        drawing.tag(axes.stairs(shares, edges, **look), "fill robot")
        axes.set_xlim(0.0, most)
        axes.set_ylim(0.0, 1.08 * float(shares.max()))
        axes.grid(axis="y", linewidth=1, clip_on=False)
        drawing.ticks(axes.xaxis, max(3, round(drawing.box[2] / 70)))
        drawing.ticks(axes.yaxis, 3, "%")
        if threshold is not None:
            axes.axvline(threshold, **DASHED)
        if (value > most).any():
            text = f"the last bar: all above {number(most)}"
            drawing.figure.text(1 - 10 / width, 2 / height, text, ha="right", va="bottom")
        return Chart(title, unit, drawing.svg(title))


# ---- feet


def stance(
    height: npt.ArrayLike, margin_m: float = 0.02, counted: slice = slice(None)
) -> npt.NDArray[np.bool_]:
    """Whether a foot is within the margin of its lowest height, (T,).

    Args:
      height: (T,) of one foot [m]; NaN is not standing.
      margin_m: above the lowest height, the 5th percentile.
      counted: frames of the percentile: those before a fall.
    """
    h = np.asarray(height, dtype=np.float64)
    valid = h[counted][np.isfinite(h[counted])]
    if valid.size == 0:
        return np.zeros(h.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(h) & (h < np.percentile(valid, 5) + margin_m))


def footfall_chart(
    time_s: npt.ArrayLike,
    reference: npt.NDArray[np.bool_] | None,
    robot: npt.NDArray[np.bool_],
    names: Sequence[str],
    *,
    title: str = "Footfall",
    clip: int | None = None,
    lost_after: float | None = None,
) -> Chart:
    """A gait diagram (Hildebrand): a row per foot with bars while it stands, the reference's above
    the robot's.

    Args:
      time_s: (T,) [s]. reference, robot: (T, F) whether each foot stands; reference may be None.
    """
    t = np.asarray(time_s, dtype=np.float64)
    t0, t1 = (float(t[0]), float(t[-1])) if len(t) > 1 else (0.0, 1.0)
    edges = t0 + (t1 - t0) / max(len(t) - 1, 1) * np.arange(len(t) + 1)
    with _drawing(WIDTH, 6 + 24 * len(names) + 32, top=6) as drawing:
        axes = drawing.axes
        axes.set_xlim(t0, t1)
        axes.set_ylim(len(names), 0.0)
        axes.set_yticks([])
        drawing.ticks(axes.xaxis, 10)
        style: dict[str, Any] = {"ha": "right", "va": "center", "clip_on": False}
        for i, name in enumerate(names):
            drawing.text(t0 - 6 / drawing.box[2] * (t1 - t0), i + 0.5, name, "ink", **style)
            rows: list[Any] = [(robot, i + 0.46, 0.38, FOOT_CSS[i % 4], None)]
            if reference is not None:
                rows.insert(0, (reference, i + 0.08, 0.29, "ref", 0.75))
            for standing, low, tall, colour, alpha in rows:
                stands = standing[:, i]
                turns = np.flatnonzero(np.concatenate([[True], stands[1:] != stands[:-1], [True]]))
                top = np.where(stands[turns[:-1]], low + tall, low)
                look: Any = {"fill": True, "facecolor": COLOURS[colour], "alpha": alpha}
                bars = axes.stairs(top, edges[turns], baseline=low, linewidth=0, **look)
                drawing.tag(bars, f"fill {colour}")
        drawing.shade_lost(lost_after)
        drawing.label_x("time (s)")
        svg = drawing.svg(title, **_scale(drawing, clip))
    keys = [("reference stands", "ref"), ("robot stands, in the foot's colour", "robot")]
    return Chart(title, "", svg, keys if reference is not None else [], wide=True)
