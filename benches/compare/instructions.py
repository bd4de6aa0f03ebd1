"""Instructions of the engine, counted by callgrind: the one figure that neighbours on the machine do not move.

Runs `benches/engine` twice, with few and with many operations; the difference is that of operations alone. Inlined code
counts for the function that it is in. Where perf is, the same program is sampled by the clock besides, for the nanoseconds of
a step that are the engine's: those of a quiet machine.
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

import table
from commands import LIMIT_S, Failed

# Names of cases of benches/engine, with the operations of both runs.
CASES = {
    "alone": (1000, 3000),
    "shm-ring-8": (100, 300),
    "shm-ring-8-buffers": (100, 300),
    "shm-ring-8-short": (100, 300),
    "shm-ring-8-long": (100, 300),
    "shm-recursive-doubling-8": (100, 300),
    "shm-tree-8": (100, 300),
    "shm-window-8": (100, 300),
    "shm-direct-8": (100, 300),
    "shm-idle": (1000, 3000),
    "ring-8": (100, 300),
    "ring-64": (4, 12),
    "recursive-doubling-64": (20, 60),
    "tree-64": (20, 60),
    "window-8": (100, 300),
    "direct-8": (100, 300),
}
# Cases whose steps are signals and waits, with the peers of one: their instructions are told per peer.
PEERS = {"shm-window-8": 7, "shm-direct-8": 7, "window-8": 7, "direct-8": 7}
# Parts of the library, in the order of the columns.
MODULES = ("engine", "comm", "transport", "kernel", "other")
# Over shared memory a clock sees what an engine costs between processes; a simulation is not like that.
SAMPLED = "shm-ring"
# At 999 a run has some 180 samples of the engine, which chance moves by 8 %.
SAMPLES_PER_S = 3999
# Steps of one sampled run, about a second, and how often that is run: the shortest counts.
STEPS_SAMPLED = 6_000_000
RUNS_SAMPLED = 5
SAMPLE = re.compile(r"^\s*[\d.]+%\s+(\d+)\s+.*?\[[.k]\]\s+(.*)$")
LINE = re.compile(r"^\s*([\d,]+)\s+\([^)]*\)\s+([^\s:]+):(.*)$")


def build_program():
    """Builds the bench and gives its path, as cargo tells it."""
    argv = ["cargo", "bench", "--locked", "--no-run", "--bench", "engine", "--message-format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"tools/speed: {' '.join(argv)}:\n{done.stderr}")
    messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    paths = [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "engine"]
    return paths[-1]


def module_of(function):
    """Which part of the library a function belongs to."""
    found = re.match(r"<?(?:&?mut )?linerate::(\w+)", function)
    module = found.group(1) if found else ""
    return module if module in MODULES else "other"


def parse(text):
    """Instructions by module, from callgrind_annotate: `count (share) file:function [object]`."""
    counts = dict.fromkeys(MODULES, 0)
    for line in text.splitlines():
        found = LINE.match(line)
        if found and "PROGRAM TOTALS" not in line:
            counts[module_of(found.group(3))] += int(found.group(1).replace(",", ""))
    return counts


def count(program, case, operations):
    """Instructions by module, and the steps of one operation."""
    with tempfile.NamedTemporaryFile(suffix=".callgrind") as file:
        run = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={file.name}"]
        done = subprocess.run(
            [*run, program, "--operations", str(operations), case], capture_output=True, text=True, timeout=LIMIT_S
        )
        if done.returncode != 0:
            raise Failed(f"{case}: {done.stderr.strip()[-300:]}")
        steps = int(re.search(r"steps (\d+)", done.stdout).group(1))
        annotate = ["callgrind_annotate", "--threshold=100", "--auto=no", file.name]
        text = subprocess.run(annotate, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    return parse(text), steps


def parse_samples(text):
    """Samples by module, from `perf report -n`: `share samples command object [.] function`."""
    counts = dict.fromkeys(MODULES, 0)
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            counts[module_of(found.group(2))] += int(found.group(1))
    return counts


def sample(program, case, steps):
    """Nanoseconds of one step by module, of the run of some in which all together took least. None where perf does not run."""
    if not shutil.which("perf"):
        return None
    operations = STEPS_SAMPLED // steps
    runs = []
    for _ in range(RUNS_SAMPLED):
        with tempfile.TemporaryDirectory() as folder:
            data = str(pathlib.Path(folder) / "samples")
            record = ["perf", "record", "-o", data, "-e", "cpu-clock", "-F", str(SAMPLES_PER_S)]
            done = subprocess.run([*record, program, "--operations", str(operations), case], capture_output=True, timeout=LIMIT_S)
            if done.returncode != 0:
                return None
            report = ["perf", "report", "-i", data, "--stdio", "-n", "--no-children"]
            runs.append(parse_samples(subprocess.run(report, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout))
    ns = 1e9 / SAMPLES_PER_S / (operations * steps)
    best = min(runs, key=lambda run: sum(run.values()))
    return {module: best[module] * ns for module in MODULES}


def measure(wanted, tell):
    program = build_program()
    results = []
    for case, (few, many) in CASES.items():
        if not wanted(case):
            continue
        tell(f"{case}: {few} and {many} operations")
        (before, steps), (after, _) = count(program, case, few), count(program, case, many)
        per_operation = {module: (after[module] - before[module]) / (many - few) for module in MODULES}
        tell(f"{case}: sampled by the clock")
        ns = sample(program, case, steps) if case.startswith(SAMPLED) else None
        results.append({"name": case, "steps": steps, "per_operation": per_operation, "ns_per_step": ns})
    return results


def build(results):
    lines = [("instructions per step of all ranks", "steps", *MODULES)]
    for result in results:
        name, peers = result["name"], PEERS.get(result["name"], 1)
        per_step = (f"{result['per_operation'][module] / result['steps'] / peers:.0f}" for module in MODULES)
        lines.append((name if peers == 1 else f"{name}, per peer", str(result["steps"]), *per_step))
    sampled = [result for result in results if result["ns_per_step"]]
    if sampled:
        lines.append(("",) * len(lines[0]))
        lines.append((f"ns per step by the clock, best of {RUNS_SAMPLED}", "steps", *MODULES))
    for result in sampled:
        per_step = (f"{result['ns_per_step'][module]:.1f}" for module in MODULES)
        lines.append((result["name"], str(result["steps"]), *per_step))
    return "\n".join(table.align(lines))
