"""Charts as small inline SVG: lines, bars, a heat map, a footfall diagram.

Each function takes plain arrays and gives a string of SVG. Colours are CSS classes (`assets/page.css` gives them a
light and a dark value), so one drawing serves both, and print. Long curves are thinned to `MAX_POINTS` per line by
keeping the extremes of each stretch, so that a spike never disappears. The page's script reads the curves back from the
drawing for its hover read-out; nothing is stored twice.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_POINTS = 600
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """One curve: x (N,), y (N,) with NaN where there is nothing to draw, its name, and its CSS class."""

    name: str
    x: npt.ArrayLike
    y: npt.ArrayLike
    css: str = "robot"


@dataclass(frozen=True)
class Bar:
    """One horizontal bar: a value, the full length it is a part of (None: none), the text at its end, a mark to compare
    with."""

    label: str
    value: float
    text: str
    css: str = "robot"
    mark: float | None = None


def escape(value: object) -> str:
    """Text made safe for HTML, quotes included. Control characters, which SVG and HTML refuse, become a visible
    mark."""
    text = "".join(c if c >= " " or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return html.escape(text, quote=True)


def breakable(name: object) -> str:
    """A name made safe for HTML that may break behind its underscores."""
    return escape(name).replace("_", "_<wbr>")


def number(value: object, digits: int = 3) -> str:
    """A number for reading: `digits` significant digits, thousands grouped, no exponent between 1e-4 and 1e7; n/a if
    not finite.

    >>> number(0.012345), number(1234567.0), number(float("nan")), number(12.0)
    ('0.0123', '1,234,567', 'n/a', '12')
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return str(value)
    x = float(value)
    if not math.isfinite(x):
        return "n/a"
    if x == 0:
        return "0"
    size = abs(x)
    if size < 1e-4 or size >= 1e9:
        mantissa, exponent = f"{x:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{x:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "\N{MINUS SIGN}")


def shorten(text: str, limit: int) -> str:
    """Text of at most `limit` characters: its beginning and its end, where names of recordings differ."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) within [low, high]."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low] if math.isfinite(low) else []
    power = 10.0 ** math.floor(math.log10((high - low) / max(count, 1)))
    step = min((power * m for m in (1, 2, 5, 10)), key=lambda s: abs(math.log((high - low) / s / max(count, 1))))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def rounded_up(value: float, digits: int = 2) -> float:
    """The next number of so many significant digits; the value itself where it is not above zero.

    >>> rounded_up(0.01723), rounded_up(3.04), rounded_up(120.0)
    (0.018, 3.1, 120.0)
    """
    if not (math.isfinite(value) and value > 0):
        return value
    decimals = digits - 1 - math.floor(math.log10(value))
    return round(math.ceil(round(value * 10.0**decimals, 6)) / 10.0**decimals, 12)


def tick_label(value: float, span: float) -> str:
    """A tick's text: short, with SI-like k and M for counts."""
    if abs(value) >= 1e9 or (value != 0 and abs(value) < 1e-4):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e\N{MINUS SIGN}").replace("e-", "e\N{MINUS SIGN}")
    for size, letter in ((1e6, "M"), (1e4, "k")):
        if span >= size and value != 0:
            unit = 1e6 if letter == "M" else 1e3
            return f"{value / unit:g}{letter}"
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def thin(x: FloatArray, y: FloatArray, limit: int = MAX_POINTS) -> tuple[FloatArray, FloatArray]:
    """At most `limit` of the points (N,), keeping the lowest and the highest of each stretch, the first and last, and
    one NaN of each stretch that has any (so that gaps stay gaps)."""
    n = len(x)
    if n <= limit:
        return x, y
    edges = np.linspace(0, n, max((limit - 2) // 3, 1) + 1).astype(int)
    keep = {0, n - 1}
    for start, stop in itertools.pairwise(edges):
        part = y[start:stop]
        finite = np.isfinite(part)
        if finite.any():
            keep.add(start + int(np.nanargmin(np.where(finite, part, np.nan))))
            keep.add(start + int(np.nanargmax(np.where(finite, part, np.nan))))
        if not finite.all():
            keep.add(start + int(np.argmin(finite)))
    index = np.array(sorted(keep))
    return x[index], y[index]


def _bounds(values: Sequence[FloatArray], log: bool) -> tuple[float, float]:
    """Lowest and highest finite value, with a margin; (0, 1) when there is none."""
    finite = [v[np.isfinite(v) & ((v > 0) if log else True)] for v in values]
    finite = [v for v in finite if v.size]
    if not finite:
        return (1e-1, 1.0) if log else (0.0, 1.0)
    low, high = float(min(v.min() for v in finite)), float(max(v.max() for v in finite))
    if log:
        return low / 1.2, high * 1.2
    if high - low < 1e-12 * max(1.0, abs(high)):
        pad = max(abs(high) * 0.1, 1e-3)
        return low - pad, high + pad
    pad = 0.06 * (high - low)
    # Quantities that start at zero (errors, heights, fractions) are drawn from zero.
    return (0.0 if 0 <= low < 0.5 * high else low - pad), high + pad


def _path(x: FloatArray, y: FloatArray) -> str:
    """SVG path data of a polyline in drawing units, broken at NaN; a lone point becomes a dot (zero-length segment)."""
    parts: list[str] = []
    drawing = False
    for xi, yi in zip(x, y, strict=True):
        if not (math.isfinite(xi) and math.isfinite(yi)):
            drawing = False
            continue
        parts.append(f"{'L' if drawing else 'M'}{xi:.1f} {yi:.1f}")
        drawing = True
    out: list[str] = []
    for i, part in enumerate(parts):
        out.append(part)
        if part[0] == "M" and (i + 1 == len(parts) or parts[i + 1][0] == "M"):
            out.append("h.01")
    return "".join(out)


def _within(y: FloatArray, top: float, bottom: float) -> FloatArray:
    """Drawing heights (N,) kept within the plot: what runs outside stops at its edge (NaN between)."""
    beyond = (y < top) | (y > bottom)
    padded = np.concatenate([[True], beyond, [True]])
    inside = ~(padded[:-2] & beyond & padded[2:])
    return np.where(inside, np.clip(y, top, bottom), np.nan)


def _text(css: str, x: float, y: float, words: str, anchor: str = "start", title: str = "") -> str:
    """An SVG text element; `title` is shown on hover."""
    hover = f"<title>{escape(title)}</title>" if title else ""
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}{hover}</text>'


def _figure(title: str, unit: str, keys: str, svg: str, css: str = "chart") -> str:
    """A drawing under its caption; `keys` is a legend's HTML."""
    words = f"<b>{escape(title)}</b>" + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
    return f'<figure class="{css}"><figcaption>{words}{keys}</figcaption>{svg}</figure>'


def _svg(width: float, height: float, title: str, parts: Sequence[str], attributes: str = "") -> str:
    size = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}"{attributes}>{"".join(parts)}</svg>'


def _axes(
    box: tuple[float, float, float, float],
    x: tuple[float, float],
    y: tuple[float, float],
    *,
    log: bool = False,
    unit: str = "",
    x_label: str = "time (s)",
    clip: int | None = None,
) -> str:
    """Attributes that tell the page's script what the drawing means: plot box (left, top, width, height) and axis
    ranges."""
    followed = "" if clip is None else f' data-clip="{clip}"'
    return (
        f' class="plot" data-box="{" ".join(f"{v:.1f}" for v in box)}" data-x="{x[0]:.9g} {x[1]:.9g}"'
        f' data-y="{y[0]:.9g} {y[1]:.9g}" data-log="{int(log)}" data-unit="{escape(unit)}"'
        f' data-xlabel="{escape(x_label)}"{followed}'
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """An HTML legend of (name, css class)."""
    items = "".join(
        f'<span class="key"><i class="swatch {escape(css)}"></i>{escape(name)}</span>' for name, css in entries
    )
    return f'<span class="legend">{items}</span>'


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str = "",
    x_label: str = "time (s)",
    width: int = 460,
    height: int = 170,
    log: bool = False,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    lost_after: float | None = None,
    clip: int | None = None,
    show_legend: bool = True,
    bands: Sequence[tuple[float, float]] = (),
    threshold: float | None = None,
    square: bool = False,
) -> str:
    """A figure of one or more curves on common axes.

    Args:
        lines: the curves, drawn in this order (the reference first, so that the robot lies on it).
        title, unit: the caption; unit is shown beside it.
        log: logarithmic y; values not above zero are left out.
        x_range, y_range: fixed axes; from the data when None.
        lost_after: x after which the robot had failed; that part is shaded.
        clip: the replay's number of the clip whose time x is: the chart then follows the replay, and a click jumps
          there.
        bands: stretches [start, stop) of x to shade, such as stances.
        threshold: a y to draw a dashed line at.
        square: one scale for both axes, as a map has.
    """
    data: list[tuple[Line, FloatArray, FloatArray]] = []
    for line in lines:
        x_values, y_values = (np.asarray(a, dtype=np.float64).reshape(-1) for a in (line.x, line.y))
        data.append((line, x_values, y_values))
    if log:
        data = [(line, x, np.where(y > 0, y, np.nan)) for line, x, y in data]
    left, right, top, bottom = 46.0, 10.0, 8.0, 32.0
    plot_w, plot_h = width - left - right, height - top - bottom
    if x_range is None:
        finite = [x[np.isfinite(x)] for _, x, _ in data]
        finite = [x for x in finite if x.size]
        x_range = (min(float(x.min()) for x in finite), max(float(x.max()) for x in finite)) if finite else (0.0, 1.0)
    x0, x1 = x_range
    if not x1 > x0:
        x0, x1 = x0 - 0.5, x0 + 0.5
    y0, y1 = y_range or _bounds([y for _, _, y in data], log)
    if not y1 > y0:
        y1 = y0 + 1.0
    if square:
        (x0, x1), (y0, y1) = _same_scale((x0, x1), (y0, y1), plot_w / plot_h)

    def to_x(v: FloatArray | float) -> FloatArray:
        return left + (np.asarray(v, dtype=np.float64) - x0) / (x1 - x0) * plot_w

    def to_y(v: FloatArray | float) -> FloatArray:
        value = np.asarray(v, dtype=np.float64)
        part = np.log(value / y0) / math.log(y1 / y0) if log else (value - y0) / (y1 - y0)
        return top + (1 - part) * plot_h

    out: list[str] = []
    for start, stop in bands:
        a, b = (float(to_x(min(max(v, x0), x1))) for v in (start, stop))
        out.append(f'<rect class="band" x="{a:.1f}" y="{top}" width="{max(b - a, 0.5):.1f}" height="{plot_h:.1f}"/>')
    if log:
        decades = [10.0**k for k in range(math.floor(math.log10(y0)), math.ceil(math.log10(y1)) + 1)]
        y_ticks = [t for t in decades if y0 <= t <= y1]
        if len(y_ticks) < 2:
            y_ticks = [t for t in (d * m for d in decades for m in (1, 2, 5)) if y0 <= t <= y1]
        while len(y_ticks) > 5:
            y_ticks = y_ticks[::2]
    else:
        y_ticks = nice_ticks(y0, y1, 4)
    for t in y_ticks:
        y = float(to_y(t))
        out.append(f'<path class="grid" d="M{left} {y:.1f}H{left + plot_w:.1f}"/>')
        out.append(_text("tick", left - 6, y + 3.5, tick_label(t, y1 - y0), "end"))
    for t in nice_ticks(x0, x1, max(3, round(plot_w / 90))):
        x = float(to_x(t))
        out.append(f'<path class="axis" d="M{x:.1f} {top + plot_h:.1f}v4"/>')
        out.append(_text("tick", x, top + plot_h + 15, tick_label(t, x1 - x0), "middle"))
    if lost_after is not None and lost_after < x1:
        x = float(to_x(max(lost_after, x0)))
        out.append(f'<rect class="lost" x="{x:.1f}" y="{top}" width="{left + plot_w - x:.1f}" height="{plot_h:.1f}"/>')
        anchor, dx = ("start", 4) if x < left + plot_w * 0.75 else ("end", -4)
        out.append(_text("note", x + dx, top + 11, f"lost at {number(lost_after)} s", anchor))
    out.append(f'<path class="axis" d="M{left} {top + plot_h:.1f}H{left + plot_w:.1f}"/>')
    if threshold is not None and y0 <= threshold <= y1:
        out.append(f'<path class="threshold" d="M{left} {float(to_y(threshold)):.1f}H{left + plot_w:.1f}"/>')
    drawn = False
    for line, line_x, line_y in data:
        tx, ty = thin(line_x, line_y)
        path = _path(to_x(tx), _within(to_y(ty), top - 1, top + plot_h + 1))
        drawn = drawn or bool(path)
        out.append(f'<path class="line {escape(line.css)}" data-name="{escape(line.name)}" d="{path}"/>')
    if not drawn:
        out.append(_text("note", left + plot_w / 2, top + plot_h / 2, "no finite values", "middle"))
    out.append(_text("tick", left + plot_w / 2, height - 3, x_label, "middle"))
    keys = legend([(line.name, line.css) for line in lines]) if show_legend and len(lines) > 1 else ""
    box = (left, top, plot_w, plot_h)
    attributes = _axes(box, (x0, x1), (y0, y1), log=log, unit=unit, x_label=x_label, clip=clip)
    return _figure(title, unit, keys, _svg(width, height, title, out, attributes))


def _same_scale(
    x: tuple[float, float], y: tuple[float, float], ratio: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Both ranges widened about their middles until a unit is as long on the one as on the other; ratio: width /
    height."""
    span = max(x[1] - x[0], ratio * (y[1] - y[0]))
    (a, b), (c, d) = x, y
    return ((a + b - span) / 2, (a + b + span) / 2), ((c + d - span / ratio) / 2, (c + d + span / ratio) / 2)


def histogram(
    values: npt.ArrayLike,
    *,
    title: str,
    unit: str = "",
    weights: npt.ArrayLike | None = None,
    before: npt.ArrayLike | None = None,
    names: tuple[str, str] = ("", ""),
    threshold: float | None = None,
    bins: int = 40,
    top: float | None = None,
    least: float = 0.0,
    width: int = 330,
    height: int = 160,
) -> str:
    """Shares of values (N,) by size, from 0; the last bin holds all that is larger than `top` (their 99.5th percentile,
    at least `least`, rounded up to two digits).

    weights: (N,) of each value. before: (N,) other weights of the same values, drawn as an outline to compare with.
    names: of what is drawn with `weights` and with `before`. threshold: a value to mark.
    """
    value = np.asarray(values, dtype=np.float64).reshape(-1)
    finite = np.isfinite(value)
    value = value[finite]
    left, right, high_edge, bottom = 40.0, 10.0, 8.0, 32.0
    plot_w, plot_h = width - left - right, height - high_edge - bottom
    if not value.size:
        words = _text("note", left + plot_w / 2, high_edge + plot_h / 2, "nothing to count", "middle")
        return _figure(title, unit, "", _svg(width, height, title, [words]))

    def shares(given: npt.ArrayLike | None) -> FloatArray:
        weight = np.ones(len(value)) if given is None else np.asarray(given, dtype=np.float64).reshape(-1)[finite]
        counts = np.bincount(index, weights=weight, minlength=bins)
        return np.asarray(100.0 * counts / max(float(counts.sum()), 1e-300))

    most = top if top is not None else rounded_up(max(float(np.percentile(value, 99.5)), least))
    if threshold is not None:
        most = max(most, 1.1 * threshold)
    most = most if most > 0 else 1.0
    index = np.minimum((np.maximum(value, 0.0) / most * bins).astype(np.int64), bins - 1)
    filled, outline = shares(weights), None if before is None else shares(before)
    tallest = float(max(filled.max(), 0.0 if outline is None else outline.max())) * 1.08
    step = plot_w / bins

    def to_y(share: float) -> float:
        return high_edge + (1.0 - share / tallest) * plot_h

    out = []
    for tick in nice_ticks(0.0, tallest, 3):
        y = to_y(tick)
        out.append(f'<path class="grid" d="M{left} {y:.1f}H{left + plot_w:.1f}"/>')
        out.append(_text("tick", left - 6, y + 3.5, f"{tick:g}%", "end"))
    bars = "".join(
        f"M{left + i * step + 0.5:.1f} {high_edge + plot_h:.1f}V{to_y(share):.1f}h{step - 1:.1f}V{high_edge + plot_h:.1f}z"
        for i, share in enumerate(filled)
        if share > 0
    )
    out.append(f'<path class="fill robot" d="{bars}"/>')
    if outline is not None:
        path = "".join(f"{'M' if i == 0 else 'V'}" + (f"{left} {to_y(s):.1f}" if i == 0 else f"{to_y(s):.1f}") + f"h{step:.2f}"
                       for i, s in enumerate(outline))  # fmt: skip
        out.append(f'<path class="line other" d="{path}"/>')
    for tick in nice_ticks(0.0, most, max(3, round(plot_w / 70))):
        x = left + tick / most * plot_w
        out.append(f'<path class="axis" d="M{x:.1f} {high_edge + plot_h:.1f}v4"/>')
        out.append(_text("tick", x, high_edge + plot_h + 15, tick_label(tick, most), "middle"))
    out.append(f'<path class="axis" d="M{left} {high_edge + plot_h:.1f}H{left + plot_w:.1f}"/>')
    if threshold is not None:
        x = left + threshold / most * plot_w
        out.append(f'<path class="threshold" d="M{x:.1f} {high_edge}v{plot_h:.1f}"/>')
    beyond = float((value > most).mean())
    if beyond > 0:
        words = f"the last bar: all above {number(most)}"
        out.append(_text("tick", left + plot_w, height - 3, words, "end"))
    keys = legend([(names[0], "robot"), (names[1], "other")]) if names[0] and before is not None else ""
    return _figure(title, unit, keys, _svg(width, height, title, out))


@dataclass(frozen=True)
class Stretch:
    """A part [start, stop) of a row of a timeline, its CSS class and what is said on hover."""

    start: float
    stop: float
    css: str
    words: str


def timeline(
    rows: Sequence[tuple[str, float, Sequence[Stretch]]],
    *,
    title: str,
    keys: Sequence[tuple[str, str]],
    width: int = 940,
) -> str:
    """Rows (name, length [s], stretches) on one time axis."""
    row, label_w, right, top = 17.0, 190.0, 50.0, 4.0
    height = top + row * len(rows) + 34
    span = width - label_w - right
    longest = max((length for _, length, _ in rows), default=1.0) or 1.0
    out = []
    for i, (name, length, stretches) in enumerate(rows):
        y = top + i * row
        out.append(_text("label small", label_w - 8, y + 12, shorten(name, 28), "end", title=name))
        out.append(
            f'<rect class="track" x="{label_w}" y="{y + 3:.1f}" width="{max(length / longest * span, 0.5):.1f}" height="11"/>'
        )
        for part in stretches:
            x, w = label_w + part.start / longest * span, (part.stop - part.start) / longest * span
            out.append(
                f'<rect class="part {escape(part.css)}" x="{x:.1f}" y="{y + 3:.1f}" width="{max(w, 0.6):.1f}" height="11">'
                f"<title>{escape(part.words)}</title></rect>"
            )
        out.append(_text("tick", label_w + length / longest * span + 6, y + 12, f"{length:.0f} s"))
    base = top + row * len(rows)
    for tick in nice_ticks(0.0, longest, 8):
        x = label_w + tick / longest * span
        out.append(f'<path class="axis" d="M{x:.1f} {base + 2:.1f}v4"/>')
        out.append(_text("tick", x, base + 17, tick_label(tick, longest), "middle"))
    out.append(_text("tick", label_w + span / 2, height - 2, "time in the recording (s)", "middle"))
    return _figure(title, "", legend(keys), _svg(width, height, title, out), "chart wide")


def bar_chart(
    bars: Sequence[Bar],
    *,
    title: str,
    full: float | None = None,
    unit: str = "",
    mark_name: str = "",
    width: int = 940,
) -> str:
    """Horizontal bars with their value in words; `full` draws the whole that each is a part of as a light track."""
    row, label_w, text_w, top = 24, 210.0, 210.0, 4
    height = top + row * len(bars) + 4
    span = width - label_w - text_w
    finite = [v for b in bars for v in (b.value, b.mark) if v is not None and math.isfinite(v)]
    most = full if full is not None else max(finite, default=1.0)
    most = most if most > 0 else 1.0
    out: list[str] = []
    for i, bar in enumerate(bars):
        y = top + i * row
        label = shorten(bar.label, 27)
        out.append(_text("label", label_w - 10, y + 15, label, "end", title=bar.label))
        if full is not None:
            out.append(f'<rect class="track" x="{label_w}" y="{y + 4}" width="{span:.1f}" height="14" rx="2"/>')
        if math.isfinite(bar.value):
            length = span * min(max(bar.value / most, 0.0), 1.0)
            out.append(
                f'<rect class="bar {escape(bar.css)}" x="{label_w}" y="{y + 4}" width="{length:.1f}" height="14" rx="2"/>'
            )
        if bar.mark is not None and math.isfinite(bar.mark):
            x = label_w + span * min(max(bar.mark / most, 0.0), 1.0)
            out.append(
                f'<path class="mark" d="M{x:.1f} {y + 1}v20"><title>{escape(mark_name)}: {number(bar.mark)}</title></path>'
            )
        out.append(_text("label", width - text_w + 10, y + 15, bar.text))
    keys = legend([(mark_name, "mark")]) if mark_name and any(b.mark is not None for b in bars) else ""
    return _figure(title, unit, keys, _svg(width, height, title, out), "chart wide")


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: npt.ArrayLike,
    *,
    title: str,
    unit: str = "",
    width: int = 940,
) -> str:
    """A table of numbers (R, C) shaded by size, the largest darkest; numbers are written in, so colour is not all."""
    table = np.asarray(values, dtype=np.float64).reshape(len(rows), len(columns))
    finite = table[np.isfinite(table)]
    most = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
    label_w, row, top = 170.0, 22.0, 22.0
    cell = (width - label_w) / max(len(columns), 1)
    height = top + row * len(rows) + 2
    out = [_text("tick", label_w + (j + 0.5) * cell, 14, c, "middle") for j, c in enumerate(columns)]
    for i, name in enumerate(rows):
        y = top + i * row
        label = shorten(name, 23)
        out.append(_text("label", label_w - 8, y + 15, label, "end", title=name))
        for j in range(len(columns)):
            v = float(table[i, j])
            x = label_w + j * cell
            part = min(max(v / most, 0.0), 1.0) if math.isfinite(v) else 0.0
            out.append(
                f'<rect class="heat" x="{x + 1:.1f}" y="{y + 1:.1f}" width="{cell - 2:.1f}" height="{row - 2:.1f}" rx="2"'
                f' fill-opacity="{0.06 + 0.84 * part:.2f}"/>'
            )
            ink = "on" if part > 0.55 else "off"
            out.append(_text(f"cell {ink}", x + cell / 2, y + 15, number(v, 2), "middle"))
    return _figure(title, unit, "", _svg(width, height, title, out), "chart wide")


def stance(height: npt.ArrayLike, margin_m: float = 0.02, counted: slice = slice(None)) -> npt.NDArray[np.bool_]:
    """In which frames a foot is near the lowest it gets.

    Args:
        height: (T,) of one foot [m]; what is not finite does not stand.
        margin_m: how far above [m] the lowest height still counts; the lowest is the 5th percentile.
        counted: the frames that decide what is lowest: those before a fall.
    """
    h = np.asarray(height, dtype=np.float64)
    known = h[counted][np.isfinite(h[counted])]
    if known.size == 0:
        return np.zeros(h.shape, dtype=bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isfinite(h) & (h < np.percentile(known, 5) + margin_m))


def footfall_chart(
    time_s: npt.ArrayLike,
    reference: npt.NDArray[np.bool_],
    robot: npt.NDArray[np.bool_],
    names: Sequence[str],
    css: Sequence[str],
    *,
    title: str = "Footfall",
    clip: int | None = None,
    lost_after: float | None = None,
    width: int = 940,
) -> str:
    """A gait diagram (Hildebrand): a row per foot, a bar while it stands; reference above in grey, robot below in its
    colour.

    Args:
        time_s: (T,) seconds; reference, robot: (T, F) standing or not.
    """
    t = np.asarray(time_s, dtype=np.float64)
    left, right, top, row = 46.0, 10.0, 6.0, 24.0
    span = width - left - right
    height = top + row * len(names) + 32
    t0, t1 = (float(t[0]), float(t[-1])) if len(t) > 1 else (0.0, 1.0)
    step = (t1 - t0) / max(len(t) - 1, 1)

    def bars(standing: npt.NDArray[np.bool_], y: float, tall: float, klass: str) -> str:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], standing.astype(int), [0]])))
        path = ""
        for a, b in zip(edges[::2], edges[1::2], strict=True):
            x = left + a * step / (t1 - t0) * span
            w = max((b - a) * step / (t1 - t0) * span, 0.5)
            path += f"M{x:.1f} {y:.1f}h{min(w, left + span - x):.1f}v{tall}H{x:.1f}z"
        return f'<path class="fill {escape(klass)}" d="{path}"/>'

    out = []
    for i, name in enumerate(names):
        y = top + i * row
        out.append(_text("label", left - 6, y + 15, name, "end"))
        out.append(f'<path class="grid" d="M{left} {y + row - 1.5:.1f}H{left + span:.1f}"/>')
        out.append(bars(reference[:, i], y + 2, 7, "ref"))
        out.append(bars(robot[:, i], y + 11, 9, css[i]))
    plot_h = row * len(names)
    if lost_after is not None and lost_after < t1:
        x = left + (lost_after - t0) / (t1 - t0) * span
        out.append(f'<rect class="lost" x="{x:.1f}" y="{top}" width="{left + span - x:.1f}" height="{plot_h:.1f}"/>')
    for tick in nice_ticks(t0, t1, 10):
        x = left + (tick - t0) / (t1 - t0) * span
        out.append(f'<path class="axis" d="M{x:.1f} {top + plot_h:.1f}v4"/>')
        out.append(_text("tick", x, top + plot_h + 15, tick_label(tick, t1 - t0), "middle"))
    out.append(_text("tick", left + span / 2, height - 3, "time (s)", "middle"))
    keys = legend([("reference stands", "ref"), ("robot stands, in the foot's colour", "robot")])
    attributes = _axes((left, top, span, plot_h), (t0, t1), (0.0, 1.0), clip=clip)
    return _figure(title, "", keys, _svg(width, height, title, out, attributes), "chart wide")
