"""python -m linerate info: what this installation is."""

from __future__ import annotations

import argparse
import platform
import sys

import linerate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m linerate", description=__doc__)
    parser.add_argument("command", choices=["info"])
    parser.parse_args()
    print(f"linerate {linerate.__version__}")
    print(f"python {platform.python_version()} ({sys.executable})")
    print(f"module {linerate._linerate.__file__}")
    with linerate.Communicator.join(0, 1, "python -m linerate info") as comm:
        print(f"transport of one rank: {comm.transport}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
