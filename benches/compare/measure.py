"""Runs commands in turns and keeps the best of each.

All rows take turns, and within a row ours, theirs and the limit, so that a drift of the machine hits every side. A
command that several rows have runs once a round.
"""

from commands import Command, Failed


class Runs:
    """What commands gave, run by run."""

    def __init__(self):
        self._numbers = {}
        self._failures = {}

    def add(self, command, numbers):
        self._numbers.setdefault(command, []).append(numbers)

    def fail(self, command, text):
        self._failures.setdefault(command, text)

    def has_failed(self, command):
        return command in self._failures

    def failure(self, command):
        return self._failures.get(command)

    def times(self, command):
        return [numbers["us"] for numbers in self._numbers.get(command, [])]

    def best(self, command):
        """The run with the least time; `None` if none ended well."""
        return min(self._numbers.get(command, []), key=lambda numbers: numbers["us"], default=None)


def measure(rows, rounds, tools, tell, runs=None):
    """Runs every command of the rows once a round; `tell(text)` before each. One that fails is not run again."""
    runs = runs or Runs()
    for turn in range(rounds):
        done = set()
        for row in rows:
            for command in row.commands:
                if command in done or runs.has_failed(command):
                    continue
                done.add(command)
                tell(f"round {turn + 1} of {rounds}: {row.name}: {command.argv[0]}")
                try:
                    runs.add(command, command.run(tools))
                except Failed as error:
                    runs.fail(command, str(error))
    return runs


def judge(row, runs):
    """The numbers of one row, as they are printed and written."""
    best = runs.best(row.ours)
    ours = best and best["us"]
    peer = _time(row.peer, runs, best)
    limit = _time(row.limit, runs, best)
    result = {
        "name": row.name,
        "bytes": row.size or None,
        "algorithm": best and best.get("algorithm"),
        "ours_us": ours,
        "peer_us": peer,
        "limit_us": limit,
        "peer_ratio": _ratio(peer, ours),
        "peer_ratio_min": row.peer_ratio_min,
        "limit_ratio": _ratio(limit, ours),
        "limit_ratio_min": row.limit_ratio_min,
        "ours_us_all": runs.times(row.ours),
        "peer_us_all": runs.times(row.peer) if row.peer else None,
        "failures": [text for text in map(runs.failure, row.commands) if text],
    }
    for side in ("ours", "peer", "limit"):
        time_us = result[f"{side}_us"]
        result[f"{side}_busbw"] = row.size * row.bus_factor / time_us / 1e3 if row.is_bandwidth and time_us else None
    result["met"] = _is_met(result)
    return result


def _time(source, runs, best):
    if isinstance(source, Command):
        numbers = runs.best(source)
        return numbers and numbers["us"]
    if isinstance(source, str):
        return best and best[source]
    return source


def _ratio(theirs, ours):
    return theirs / ours if theirs and ours else None


def _is_met(result):
    """`None` where nothing is wanted, or where what is wanted could not be compared."""
    verdicts = []
    for kind in ("peer", "limit"):
        least, ratio = result[f"{kind}_ratio_min"], result[f"{kind}_ratio"]
        if least is not None:
            verdicts.append(None if ratio is None else ratio >= least)
    if False in verdicts:
        return False
    return True if verdicts and None not in verdicts else None
