"""Ranks as processes, for the tests."""

import multiprocessing
import os
import traceback
import unittest
import uuid

import linerate

SPAWN = multiprocessing.get_context("spawn")
SETTINGS = {"LINERATE_TIMEOUT": "20"}


def _run(function, rank, ranks, job, settings, results, arguments):
    try:
        comm = linerate.Communicator.join(rank, ranks, job, settings)
        results.put((rank, function(comm, *arguments), None))
        comm.close()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


def start(function, ranks, *arguments, settings=None):
    """Processes that run function(communicator, *arguments), and the queue of what they return."""
    results, job = SPAWN.Queue(), f"python-{uuid.uuid4()}"
    settings = {**SETTINGS, **(settings or {})}
    own = lambda rank: (function, rank, ranks, job, settings, results, arguments)
    processes = [SPAWN.Process(target=_run, args=own(rank)) for rank in range(ranks)]
    for process in processes:
        process.start()
    return processes, results


def run(function, ranks, *arguments, settings=None):
    """What each rank returns, in the order of ranks."""
    processes, results = start(function, ranks, *arguments, settings=settings)
    told = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    for rank, _, error in told:
        if error is not None:
            raise AssertionError(f"rank {rank}: {error}")
    return [value for _, value, _ in sorted(told, key=lambda one: one[0])]


def alone(settings=None):
    return linerate.Communicator.join(0, 1, f"python-{os.getpid()}-{uuid.uuid4()}", {**SETTINGS, **(settings or {})})


class Alone(unittest.TestCase):
    """Tests of a communicator of one rank."""

    def setUp(self):
        self.comm = alone()

    def tearDown(self):
        self.comm.close()

    def refused(self, word, call, *arguments, **named):
        with self.assertRaisesRegex(linerate.InvalidArgument, word) as caught:
            call(*arguments, **named)
        self.assertIsInstance(caught.exception, ValueError)
