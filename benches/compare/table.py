"""The table of the comparison."""

COLUMNS = ("case", "ours", "peer", "limit", "to peer", "wanted", "to limit", "wanted", "met")


def time_or_bandwidth(result, side):
    time_us, busbw = result[f"{side}_us"], result[f"{side}_busbw"]
    if time_us is None:
        return "-"
    if busbw is not None:
        return f"{busbw:.2f} GB/s"
    return f"{time_us:.2f} us" if time_us < 1000 else f"{time_us / 1e3:.2f} ms"


def ratio(value):
    return "-" if value is None else f"{value:.2f}"


def cells(result):
    met = {True: "yes", False: "NO", None: "-"}[result["met"]]
    least = [ratio(result[f"{kind}_ratio_min"]) for kind in ("peer", "limit")]
    return (
        result["name"],
        *(time_or_bandwidth(result, side) for side in ("ours", "peer", "limit")),
        ratio(result["peer_ratio"]),
        least[0],
        ratio(result["limit_ratio"]),
        least[1],
        met,
    )


def align(lines):
    """Columns as wide as they have to be; the first one to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = []
    for line in lines:
        first, *others = (cell.ljust(width) if not i else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths)))
        text.append("  ".join([first, *others]).rstrip())
    return text


def build(results):
    """The table, then what failed."""
    lines = align([COLUMNS] + [cells(result) for result in results])
    lines.insert(1, "-" * len(lines[0]))
    for result in results:
        lines.extend(f"failed: {result['name']}: {text}" for text in result["failures"])
    judged = [result["met"] for result in results if result["met"] is not None]
    lines.append(f"{sum(judged)} of {len(judged)} wanted ratios met" if judged else "nothing was judged")
    return "\n".join(lines)
