"""The picture of the README: bus bandwidth of an allreduce over message size, ours, its peers and the limit, as one SVG.

All commands take turns (measure.py), and the best run of each counts. The page is white in any theme, and text names no
font that a reader might lack.
"""

import math
from dataclasses import dataclass
from html import escape

from commands import bench, gloo, mpi, mpich, roofline
from rows import KIB, MIB, describe_size

RANKS = 2
SIZES = tuple(KIB * 4**power for power in range(9))
# nccl-tests' bus bandwidth.
BUS_FACTOR = 2 * (RANKS - 1) / RANKS
# The limit is of memory, and says nothing of shorter messages.
LIMIT_BYTES_MIN = 4 * KIB


@dataclass(frozen=True)
class Series:
    """One line: what it is, how it is measured at a size, and how it looks (colours of Okabe and Ito)."""

    name: str
    command: object
    colour: str
    width: float = 2
    dashes: str = ""
    bytes_min: int = 0


SERIES = (
    Series(
        "limit of the machine (memory)",
        lambda size: roofline(RANKS, size),
        "#666666",
        dashes="7 5",
        bytes_min=LIMIT_BYTES_MIN,
    ),
    Series("linerate (registered memory)", lambda size: bench("allreduce", RANKS, size, transport="shm"), "#0072b2", width=4),
    Series("Open MPI", lambda size: mpi(RANKS, size), "#d55e00"),
    Series("MPICH", lambda size: mpich(RANKS, size), "#009e73"),
    Series("Gloo (loopback TCP)", lambda size: gloo(RANKS, size), "#cc79a7"),
)


@dataclass(frozen=True)
class Point:
    """One size, with the command of each series that is measured there."""

    size: int
    sides: tuple

    @property
    def name(self):
        return f"picture {describe_size(self.size)}"

    @property
    def commands(self):
        return [command for _, command in self.sides]


def points(is_there):
    """What is measured; `is_there(command)` says whether its programs are."""
    sides = {size: [(one, one.command(size)) for one in SERIES if size >= one.bytes_min] for size in SIZES}
    return [Point(size, tuple(side for side in pairs if is_there(side[1]))) for size, pairs in sides.items()]


def judge(measured, runs):
    """By series: sizes with their bus bandwidth in 1e9 bytes a second. A series that gave nothing is left out."""
    lines = {}
    for point in measured:
        for one, command in point.sides:
            best = runs.best(command)
            if best:
                lines.setdefault(one.name, []).append((point.size, point.size * BUS_FACTOR / best["us"] / 1e3))
    return [{"name": one.name, "points": lines[one.name]} for one in SERIES if one.name in lines]


def failures(measured, runs):
    """Why points are missing."""
    return [text for point in measured for text in map(runs.failure, point.commands) if text]


# The page, and the field in it that the lines are drawn in.
WIDTH, HEIGHT = 800, 500
LEFT, RIGHT, TOP, BOTTOM = 64, 756, 72, 400
DARK, GREY, PALE = "#222222", "#555555", "#dddddd"
TITLE = f"Allreduce on one host: {RANKS} ranks, shared memory, f32 sum, in place"


def text(x, y, words, size=14, anchor="start", colour=DARK, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(words)}</text>'


def stroke(x1, y1, x2, y2, colour, width=1.0, dashes=""):
    dashes = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashes}/>'


def bounds(values):
    """Where the axis begins and ends: 1, 2 or 5 times a power of ten, as close around all values as can be."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    return max(step for step in steps if step <= min(values)), min(step for step in steps if step >= max(values))


def place(value, low, high, start, end):
    """Where a value lies between two others, by logarithms."""
    share = math.log(value / low) / math.log(high / low) if high > low else 0.5
    return start + share * (end - start)


def build(lines, about, rounds):
    """The SVG; `about` is the machine (`cpu`, `cores`, `time`)."""
    low, high = bounds([busbw for line in lines for _, busbw in line["points"]])
    across = lambda size: place(size, SIZES[0], SIZES[-1], LEFT, RIGHT)
    up = lambda busbw: place(busbw, low, high, BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img">',
        f"<title>{escape(TITLE)}: bus bandwidth over message size</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        text(LEFT, 32, TITLE, size=18, more=' font-weight="bold"'),
        text(LEFT, 54, "bus bandwidth in GB/s; higher is better, both axes are logarithmic", colour=GREY),
    ]
    decades = [10.0**power for power in range(-9, 9) if low <= 10.0**power <= high]
    for busbw in sorted({low, *decades, high}):
        y = up(busbw)
        parts += [stroke(LEFT, y, RIGHT, y, PALE), text(LEFT - 8, y + 5, f"{busbw:g}", anchor="end")]
    for size in SIZES:
        x = across(size)
        parts += [stroke(x, TOP, x, BOTTOM, PALE), text(x, BOTTOM + 20, describe_size(size), anchor="middle")]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 44, "message size, bytes of one rank", anchor="middle"))
    looks = {one.name: one for one in SERIES}
    # Ours is drawn last, above the others.
    for line in sorted(lines, key=lambda line: looks[line["name"]].width):
        one = looks[line["name"]]
        dots = [(across(size), up(busbw)) for size, busbw in line["points"]]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        dashes = f' stroke-dasharray="{one.dashes}"' if one.dashes else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{one.colour}" stroke-width="{one.width}"{dashes}/>')
        if not one.dashes:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{one.width + 1.5}" fill="{one.colour}"/>' for x, y in dots]
    parts += legend([looks[line["name"]] for line in lines])
    caption = f"{about['cpu']}, {about['cores']} cores, {about['time'][:10]}. Best of {rounds} runs of each program, in turn."
    parts += [
        text(LEFT, HEIGHT - 30, caption, size=12, colour=GREY),
        text(LEFT, HEIGHT - 12, "Made by tools/speed --picture.", size=12, colour=GREY),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def legend(looks):
    """Names in a box in the lower right, below where lines end."""
    rows = len(looks)
    left, top = RIGHT - 318, BOTTOM - 22 * rows - 14
    parts = [f'<rect x="{left}" y="{top}" width="310" height="{22 * rows + 6}" fill="#ffffff" stroke="{PALE}"/>']
    for row, one in enumerate(looks):
        y = top + 18 + 22 * row
        parts.append(stroke(left + 10, y - 5, left + 44, y - 5, one.colour, one.width, one.dashes))
        bold = ' font-weight="bold"' if one.width > 2 else ""
        parts.append(text(left + 54, y, one.name, more=bold))
    return parts
