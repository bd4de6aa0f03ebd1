"""The choice of algorithm beside every algorithm that can run, over collectives, ranks, memory and sizes.

Printed is where what is chosen takes longer than the best one, beyond what is allowed.
"""

import tempfile
from dataclasses import dataclass
from typing import Optional

import table
from commands import REFUSED, Failed, algorithms, bench, calibrate, with_prices
from measure import Runs
from rows import KIB, MIB, describe_size

COLLECTIVES = ("allreduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all")
RANKS = (2, 3, 4, 8)
MEMORY = ("registered", "caller")
SIZES = (8, 64, 512, 4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 16 * MIB, 64 * MIB)
SIZES_QUICK = (8, 512, 32 * KIB, 2 * MIB, 16 * MIB)
# Of the best one's time: what a choice may lose.
LOSS_MAX = 0.20
AUTO = "auto"
# After so many rounds a choice that loses no more is not measured further: the noise that a best of few leaves only ever
# looks like a loss where there is none.
ROUNDS_LEAST = 2


@dataclass(frozen=True)
class Case:
    """One choice."""

    collective: str
    ranks: int
    memory: str
    size: int
    # File of the prices of this host; `None`: those that a user of it has.
    prices: Optional[str] = None

    @property
    def name(self):
        return f"{self.collective} {self.ranks} ranks {self.memory} {describe_size(self.size)}"

    def command(self, algorithm):
        iterations = 300 if self.size < 64 * KIB else 60 if self.size < 4 * MIB else 10
        more = ("--algo", algorithm, "-n", str(iterations), "-c", "0")
        return with_prices(self.prices, bench(self.collective, self.ranks, self.size, self.memory, "shm", more))


def cases(wanted, is_quick, prices=None):
    sizes = SIZES_QUICK if is_quick else SIZES
    every = (Case(c, r, m, s, prices) for c in COLLECTIVES for r in RANKS for m in MEMORY for s in sizes)
    return [case for case in every if wanted(case.name)]


def measure(linerate, rounds, wanted, tell, is_quick):
    """The numbers of every case, by the prices that a user of this host has: the built-in ones, or what was stored."""
    return measure_cases(linerate, rounds, cases(wanted, is_quick), tell)


def measure_calibrated(linerate, rounds, wanted, tell, is_quick):
    """The same with prices of this host, measured now and then forgotten."""
    with tempfile.TemporaryDirectory() as folder:
        prices = f"{folder}/prices"
        tell("calibrating")
        calibrate(prices).run({"linerate": linerate})
        return measure_cases(linerate, rounds, cases(wanted, is_quick, prices), tell)


def measure_cases(linerate, rounds, chosen, tell):
    """All algorithms of a case take turns, at most `rounds` times."""
    tools, names = {"linerate": linerate}, {}
    results = []
    for number, case in enumerate(chosen):
        if case.collective not in names:
            names[case.collective] = [AUTO, *algorithms(linerate, case.collective)]
        runs = Runs()
        for turn in range(rounds):
            if turn >= ROUNDS_LEAST and not is_off(judge(case, names[case.collective], runs)):
                break
            tell(f"{number + 1} of {len(chosen)}: {case.name}, round {turn + 1} of at most {rounds}")
            run(tools, case, names[case.collective], runs)
        results.append(judge(case, names[case.collective], runs))
    return results


def run(tools, case, names, runs):
    """One round: every algorithm once."""
    for algorithm in names:
        command = case.command(algorithm)
        if runs.has_failed(command):
            continue
        try:
            runs.add(command, command.run(tools))
        except Failed as error:
            runs.fail(command, str(error))


def is_off(result):
    """The choice loses more than it may."""
    return result["loss"] is not None and result["loss"] > LOSS_MAX


def judge(case, names, runs):
    """What the choice costs beside the best. That it is measured twice, as itself and as chosen, shows the noise."""
    own = runs.best(case.command(AUTO))
    times = {name: numbers["us"] for name in names[1:] if (numbers := runs.best(case.command(name)))}
    best = min(times, key=times.get, default=None)
    chosen = own and own["algorithm"]
    # By name it ran as often as the others; `auto` is the same code and only found the name.
    time_us = min(filter(None, (own and own["us"], times.get(chosen))), default=None)
    loss = time_us / times[best] - 1 if best and time_us else None
    return {
        "name": case.name,
        "chosen": chosen,
        "chosen_us": time_us,
        "best": best,
        "best_us": times.get(best),
        "loss": loss,
        "times_us": times,
        # An algorithm that cannot do the case is refused; nothing else may go wrong, and the choice must always be there.
        "failures": [text for name in names if (text := failure(case, name, runs))],
    }


def failure(case, name, runs):
    text = runs.failure(case.command(name))
    return text if text and (name == AUTO or not text.startswith(REFUSED)) else None


def build(results):
    """Where a choice loses more than it may, worst first."""
    bad = [result for result in results if is_off(result)]
    bad.sort(key=lambda result: -result["loss"])
    lines = [("case", "chosen", "us", "best", "us", "slower by")]
    for result in bad:
        times = [f"{result[key]:.2f}" for key in ("chosen_us", "best_us")]
        lines.append((result["name"], result["chosen"], times[0], result["best"], times[1], f"{result['loss']:.0%}"))
    text = table.align(lines) if bad else []
    text += [f"failed: {result['name']}: {reason}" for result in results for reason in result["failures"]]
    text.append(f"{len(results) - len(bad)} of {len(results)} choices are within {LOSS_MAX:.0%} of the best algorithm")
    return "\n".join(text)
