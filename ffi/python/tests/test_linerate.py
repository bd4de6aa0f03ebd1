"""The package without torch: python3 -m unittest discover --start-directory ffi/python/tests"""

import asyncio
import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import linerate
import numpy
import ranks

REAL = ["f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
COMPLEX = ["c8", "c16"]


def values(rank, count, dtype):
    return (numpy.arange(count) % 7 + rank + 1).astype(dtype)


def lists(comm, dtype, counts, own, everyone):
    """Memory for each rank in place of one that has all."""
    rank, p = comm.rank, comm.ranks
    parts = lambda lengths: [numpy.zeros(length, dtype) for length in lengths]
    split = lambda one: [one[sum(counts[:r]) : sum(counts[: r + 1])].copy() for r in range(p)]
    same = lambda ours, theirs: [numpy.testing.assert_array_equal(*both) for both in zip(ours, theirs)]
    out = parts(counts)
    comm.all_gather_v(own[: rank + 1].copy(), out)
    same(out, [one[: r + 1] for r, one in enumerate(everyone)])
    out = parts(counts) if rank == 0 else None
    comm.gather_v(own[: rank + 1].copy(), counts, out)
    same(out or [], [one[: r + 1] for r, one in enumerate(everyone)])
    (out,) = parts([rank + 1])
    comm.scatter_v(out, counts, split(own) if rank == 0 else None)
    same([out], [split(everyone[0])[rank]])
    comm.reduce_scatter_v(split(own), out)
    same([out], [split(sum(everyone).astype(dtype))[rank]])
    out = parts([rank + 1] * p)
    operation = comm.all_to_all_v(split(own), None, out, None, async_op=True)
    gc.collect()
    operation.wait()
    same(out, [split(one)[rank] for one in everyone])


def collectives(comm, dtypes, count):
    rank, p = comm.rank, comm.ranks
    everyone = lambda dtype, length=count: [values(r, length, dtype) for r in range(p)]
    for dtype in dtypes:
        own = values(rank, count, dtype)
        total = sum(everyone(dtype)).astype(dtype)
        data = own.copy()
        comm.all_reduce(data)
        numpy.testing.assert_array_equal(data, total)
        out = numpy.zeros(count, dtype)
        comm.all_reduce(own, out, op="prod" if dtype not in COMPLEX else "sum")
        if dtype not in COMPLEX:
            numpy.testing.assert_array_equal(out, numpy.prod(everyone(dtype), axis=0).astype(dtype))
        data = own.copy() if rank == 1 % p else numpy.zeros(count, dtype)
        comm.broadcast(data, root=1 % p)
        numpy.testing.assert_array_equal(data, values(1 % p, count, dtype))
        data = own.copy()
        comm.reduce(data, root=0, op="max" if dtype not in COMPLEX else "sum")
        if rank == 0:
            wanted = numpy.max(everyone(dtype), axis=0) if dtype not in COMPLEX else total
            numpy.testing.assert_array_equal(data, wanted)
        out = numpy.zeros((p, count), dtype)
        comm.all_gather(own, out)
        numpy.testing.assert_array_equal(out, everyone(dtype))
        out = numpy.zeros((p, count), dtype) if rank == 0 else None
        comm.gather(own, out)
        if rank == 0:
            numpy.testing.assert_array_equal(out, everyone(dtype))
        long = everyone(dtype, p * count)
        out = numpy.zeros(count, dtype)
        comm.reduce_scatter(long[rank], out)
        numpy.testing.assert_array_equal(out, sum(long).astype(dtype)[rank * count : (rank + 1) * count])
        comm.scatter(out, long[0] if rank == 0 else None)
        numpy.testing.assert_array_equal(out, long[0][rank * count : (rank + 1) * count])
        out = numpy.zeros(p * count, dtype)
        comm.all_to_all(long[rank], out)
        numpy.testing.assert_array_equal(out, numpy.concatenate([one[rank * count : (rank + 1) * count] for one in long]))
        counts = [r + 1 for r in range(p)]
        out = numpy.zeros(sum(counts), dtype)
        comm.all_gather_v(own[: rank + 1].copy(), out, counts)
        numpy.testing.assert_array_equal(out, numpy.concatenate([one[: r + 1] for r, one in enumerate(everyone(dtype))]))
        out = numpy.zeros(rank + 1, dtype)
        comm.reduce_scatter_v(own[: sum(counts)].copy(), out, counts)
        start = sum(counts[:rank])
        numpy.testing.assert_array_equal(out, total[start : start + rank + 1])
        out = numpy.zeros(p * (rank + 1), dtype)
        comm.all_to_all_v(own[: sum(counts)].copy(), counts, out, [rank + 1] * p)
        numpy.testing.assert_array_equal(out, numpy.concatenate([one[start : start + rank + 1] for one in everyone(dtype)]))
        out = numpy.zeros(sum(counts), dtype) if rank == 0 else None
        comm.gather_v(own[: rank + 1].copy(), counts, out)
        if rank == 0:
            numpy.testing.assert_array_equal(out, numpy.concatenate([one[: r + 1] for r, one in enumerate(everyone(dtype))]))
        out = numpy.zeros(rank + 1, dtype)
        comm.scatter_v(out, counts, long[0][: sum(counts)].copy() if rank == 0 else None)
        numpy.testing.assert_array_equal(out, long[0][start : start + rank + 1])
        lists(comm, dtype, counts, own, everyone(dtype))
    flags = numpy.array([rank == 0, True, False])
    comm.all_reduce(flags, op="prod")
    numpy.testing.assert_array_equal(flags, [p == 1, True, False])
    bits = numpy.array([1 << rank], "u4")
    comm.all_reduce(bits, op="bitor")
    assert bits[0] == (1 << p) - 1
    comm.barrier()
    return comm.transport


def messages(comm):
    peer = 1 - comm.rank
    sends = [comm.send(numpy.full(5, 10 * tag + comm.rank), peer, tag, async_op=True) for tag in range(3)]
    data = numpy.zeros(5, int)
    assert comm.recv(data, peer, 2) == peer and data[4] == 20 + peer
    assert comm.recv(data, tag=0) == peer and data[0] == peer
    receive = comm.recv(data, tag=1, async_op=True)
    assert receive.wait() and receive.source == peer and data[0] == 10 + peer
    for send in sends:
        send.wait()
    waiting = comm.recv(data, tag=9, async_op=True)
    assert not waiting.wait(0.05) and waiting.cancel_receive()
    try:
        waiting.wait()
    except linerate.ReceiveCancelled as error:
        assert "tag 9" in str(error)
    else:
        raise AssertionError("it was cancelled")
    comm.barrier()


def started(comm):
    arrays = [numpy.full(1000 * (n + 1), 1.0) for n in range(20)]
    operations = [comm.all_reduce(array, async_op=True) for array in arrays]
    for operation in operations:
        assert operation.wait() and operation.done() and operation.exception() is None
    assert all((array == comm.ranks).all() for array in arrays)
    # Nobody holds the operation, and nobody else its memory.
    for _ in range(20):
        comm.all_reduce(numpy.ones(200_000), async_op=True)
    gc.collect()
    comm.barrier()
    queue = comm.completion_queue()
    for n, array in enumerate(arrays):
        comm.all_reduce(array, async_op=True).notify(queue, n)
    seen = set()
    while len(seen) < len(arrays):
        for user, error, source in queue.wait():
            assert error is None and source is None
            seen.add(user)
    assert seen == set(range(len(arrays))) and len(queue) == 0 and queue.wait(0) == []
    queue.close()

    async def both():
        first, second = numpy.ones(3), numpy.ones(300_000)
        one = comm.all_reduce(first, async_op=True)
        other = comm.all_reduce(second, async_op=True)
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(beat())
        await asyncio.gather(one, other)
        await asyncio.sleep(0.01)
        task.cancel()
        assert first[0] == second[0] == comm.ranks and beats > 0

    asyncio.run(both())
    comm.barrier()


def groups(comm):
    twin = comm.duplicate()
    part = comm.split(comm.rank % 2, -comm.rank)
    data = numpy.ones(4)
    part.all_reduce(data)
    assert data[0] == part.ranks and repr(part).startswith("linerate.Communicator(rank")
    assert comm.split(None) is None
    twin.finalize()
    part.close()
    part.close()
    try:
        part.barrier()
    except linerate.InvalidArgument as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("it was closed")
    with comm.duplicate() as other:
        other.barrier()
    comm.barrier()


def disagree(comm):
    twin = comm.duplicate()
    try:
        twin.all_reduce(numpy.ones(4 + comm.rank))
    except linerate.Error as error:
        assert isinstance(error.first_cause, linerate.Mismatch), error
        assert "rank 0" in str(error) and "rank 1" in str(error)
    else:
        raise AssertionError("ranks disagree")
    try:
        twin.barrier()
    except linerate.CommunicatorFailed as error:
        assert isinstance(error.first_cause, linerate.Mismatch)
        assert isinstance(twin.failure(), linerate.Mismatch)
    twin.close()
    comm.barrier()


def lose_one(comm, how):
    comm.barrier()
    if comm.rank == 1:
        # The others are in the allreduce by then: what is lost before is nobody's operation.
        time.sleep(1)
        os.kill(os.getpid(), how)
    try:
        comm.all_reduce(numpy.ones(10))
    except linerate.Error as error:
        cause = error.first_cause
        return type(cause).__name__, cause.ranks, cause.operation, isinstance(cause, TimeoutError)
    return None


class Alone(ranks.Alone):
    def test_arguments_that_do_not_fit_are_refused_by_name(self):
        comm, array = self.comm, numpy.zeros(6)
        read_only = numpy.zeros(6)
        read_only.flags.writeable = False
        self.refused("read-only", comm.all_reduce, read_only)
        self.refused("read-only", comm.all_reduce, b"bytes")
        comm.all_reduce(read_only, array)
        self.refused("gaps", comm.all_reduce, numpy.zeros((4, 4))[:, :2])
        self.refused("gaps", comm.all_reduce, numpy.zeros(8)[::2])
        self.refused("order of another machine", comm.all_reduce, numpy.zeros(4, ">f4"))
        self.refused("no type of linerate", comm.all_reduce, numpy.zeros(2, "f4,i4"))
        self.refused("no type of linerate", comm.all_reduce, numpy.zeros(2, numpy.longdouble))
        self.refused("buffer protocol", comm.all_reduce, [1.0, 2.0])
        self.refused("segment 1 of the output.*buffer protocol", comm.all_gather_v, array, [array, 1.0])
        self.refused("segment 0 of the output is read-only", comm.all_gather_v, array, [read_only])
        self.refused("segments of f64 and of f32", comm.reduce_scatter_v, [array, numpy.zeros(1, "f4")], array.copy())
        self.refused("2 receive_counts for 1 ranks", comm.all_gather_v, array, [array.copy(), array.copy()])
        self.refused("is a list", comm.all_gather, array, [array.copy()])
        self.refused("not aligned", comm.reduce_scatter_v, [(1, 6, "f64")], array)
        self.refused("address, count, type", comm.all_reduce, (1, 2))
        self.refused("unknown type", comm.all_reduce, (1, 2, "f31"))
        self.refused("not aligned", comm.all_reduce, (1, 2, "f32"))
        self.refused("f64.*f32", comm.all_reduce, array, numpy.zeros(6, "f4"))
        self.refused("7 elements, and 6", comm.all_reduce, array, numpy.zeros(7))
        self.refused("overlap", comm.all_reduce, array[:4], array[1:5])
        self.refused("unknown operator", comm.all_reduce, array, op="mean")
        self.refused("bitxor", comm.all_reduce, array, op="bitxor")
        self.refused("no algorithm", comm.all_reduce, array, algorithm="none such")
        self.refused("timeout is -1", comm.all_reduce, array, timeout=-1)
        self.refused("root 3", comm.broadcast, array, 3)
        self.refused("unknown type", comm.alloc, 4, "f31")
        self.refused("address space", comm.alloc, 1 << 62)
        self.refused("LINERATE_TIMEOUT", ranks.alone, {"LINERATE_TIMEUOT": "3"})
        self.refused("LINERATE_TIMEOUT", ranks.alone, {"LINERATE_TIMEOUT": "soon"})
        with self.assertRaises(linerate.Bootstrap):
            linerate.Communicator.join(2, 2, "no such rank")
        with self.assertRaises(TypeError):
            comm.all_reduce()
        comm.all_reduce(array)

    def test_memory_of_many_kinds_is_taken(self):
        comm = self.comm
        for memory in (
            bytearray(8),
            memoryview(bytearray(8)),
            (ctypes.c_double * 4)(),
            numpy.zeros((3, 4), order="F"),
            numpy.zeros(()),
            numpy.zeros(0),
            numpy.zeros((4, 4))[1:3],
            (0, 0, "f32"),
            comm.alloc(4),
            comm.alloc(0),
        ):
            comm.all_reduce(memory)
        array = numpy.ones(10, "u2")
        # bf16, which numpy has not.
        comm.all_reduce((array.ctypes.data, 10, "bf16"), op="avg")
        self.assertEqual(array[0], 1)

    def test_registered_memory_is_seen_by_others_and_kept_alive(self):
        for dtype in ("f64", "f32", "f16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "bool", "c64", "c128"):
            buffer = self.comm.alloc(100, dtype)
            array, same = numpy.asarray(buffer), numpy.from_dlpack(buffer)
            self.assertEqual((array.shape, array.nbytes, len(buffer)), ((100,), buffer.nbytes, 100))
            self.assertEqual((array.ctypes.data, same.ctypes.data), (buffer.address, buffer.address))
            self.assertEqual((array.dtype, buffer.dtype), (same.dtype, dtype))
            array[:] = 1
            self.comm.all_reduce(array)
            self.assertEqual(self.comm.unregistered_bytes, 0)
            del buffer
            gc.collect()
            array += array
            self.assertEqual(same[99], array[99])
        wide = self.comm.alloc(4, "bf16")
        self.assertEqual((repr(wide), wide.__dlpack_device__()), ("linerate.Buffer(4 of bf16)", (1, 0)))
        with self.assertRaisesRegex(BufferError, "dlpack"):
            memoryview(wide)
        # A capsule that nobody takes frees what it holds.
        for _ in range(1000):
            wide.__dlpack__()
        own = numpy.zeros(4096, "u1")
        self.comm.all_reduce(own)
        self.assertEqual(self.comm.unregistered_bytes, 4096)
        self.comm.register(own)
        self.refused("registered already", self.comm.register, own)
        self.comm.all_reduce(own)
        self.comm.deregister(own)

    def test_errors_keep_what_they_know(self):
        error = linerate.Timeout("text", [3], "barrier", None)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual((str(again), again.ranks, again.operation), ("text", (3,), "barrier"))
        self.assertIs(error.first_cause, error)
        self.assertTrue(issubclass(linerate.Exhausted, MemoryError) and issubclass(linerate.Timeout, TimeoutError))

    def test_an_exchange_of_python_is_enough_to_meet(self):
        values = {}

        class Store:
            def put(self, key, value, limit):
                values[key] = value

            def get(self, key, limit):
                return values.get(key)

        comms = [None, None]

        def join(rank):
            comms[rank] = linerate.Communicator.join_by(rank, 2, "a store", Store(), ranks.SETTINGS)
            comms[rank].barrier()

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([comm.rank for comm in comms], [0, 1])
        for comm in comms:
            comm.close()

        class Broken:
            def put(self, key, value, limit):
                raise KeyError("the store is gone")

            get = put

        with self.assertRaisesRegex(linerate.Bootstrap, "the store is gone"):
            linerate.Communicator.join_by(0, 2, "broken", Broken())

    def test_a_forked_child_is_refused_and_the_parent_goes_on(self):
        child = os.fork()
        if child == 0:
            try:
                self.comm.barrier()
            except linerate.Forked:
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        self.comm.barrier()

    def test_nothing_is_left_of_many_communicators(self):
        count = lambda: (len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))

        def settled():
            # A thread that has given its result ends a moment later.
            deadline = time.monotonic() + 10
            while count()[1] > threading.active_count() and time.monotonic() < deadline:
                time.sleep(0.01)
            return count()

        for turn in range(120):
            with ranks.alone() as comm:
                buffer = numpy.asarray(comm.alloc(1000))
                comm.all_reduce(buffer, async_op=True).wait()
            del buffer
            if turn == 20:
                before = settled()
        self.assertEqual(settled(), before)

    def test_the_module_as_a_command(self):
        done = subprocess.run([sys.executable, "-m", "linerate", "info"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"linerate {linerate.__version__}", done.stdout)


class Several(unittest.TestCase):
    def test_every_collective_of_every_type_gives_what_numpy_gives(self):
        for transport in ("shm", "tcp"):
            for p in (2, 3):
                done = ranks.run(collectives, p, REAL + COMPLEX, 10, settings={"LINERATE_TRANSPORT": transport})
                self.assertEqual(done, [transport] * p)
        ranks.run(collectives, 2, ["f4", "i8"], 100_000)

    def test_messages_with_tags(self):
        ranks.run(messages, 2)

    def test_operations_that_are_started(self):
        ranks.run(started, 2)

    def test_groups(self):
        ranks.run(groups, 3)

    def test_ranks_that_disagree_are_named(self):
        ranks.run(disagree, 2)

    def test_a_peer_that_is_killed_is_named(self):
        processes, results = ranks.start(lose_one, 3, signal.SIGKILL)
        for _ in range(2):
            _, told, error = results.get(timeout=60)
            self.assertIsNone(error)
            self.assertEqual(told[:2], ("PeerFailed", (1,)))
            self.assertIn("allreduce", told[2])
        for process in processes:
            process.join()

    def test_a_peer_that_sleeps_is_named_in_time(self):
        processes, results = ranks.start(lose_one, 2, signal.SIGSTOP, settings={"LINERATE_TIMEOUT": "2"})
        _, told, error = results.get(timeout=60)
        processes[1].kill()
        self.assertIsNone(error)
        self.assertEqual((told[0], told[1], told[3]), ("Timeout", (1,), True))
        for process in processes:
            process.join()

    def test_ctrl_c_ends_a_wait_at_once(self):
        program = textwrap.dedent(
            """
            import linerate, numpy, signal, sys, time
            # A shell that starts a job in the background has it ignore the signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            rank, job = int(sys.argv[1]), sys.argv[2]
            def wait():
                if sys.argv[3] == "join":
                    linerate.Communicator.join(rank, 2, job)
                comm = linerate.Communicator.join(rank, 2, job)
                if rank == 1:
                    print("ready", flush=True)
                    time.sleep(60)
                print("ready", flush=True)
                comm.all_reduce(numpy.ones(10))
            if sys.argv[3] == "join":
                print("ready", flush=True)
            try:
                wait()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            """
        )
        for where in ("call", "join"):
            job = f"python-interrupted-{os.getpid()}-{where}"
            start = lambda rank: subprocess.Popen(
                [sys.executable, "-c", program, str(rank), job, where], stdout=subprocess.PIPE, text=True
            )
            processes = [start(rank) for rank in range(2 if where == "call" else 1)]
            for process in processes:
                self.assertEqual(process.stdout.readline(), "ready\n")
            time.sleep(0.3)
            processes[0].send_signal(signal.SIGINT)
            begun = time.monotonic()
            self.assertEqual(processes[0].stdout.readline(), "interrupted\n")
            # It looks twenty times a second; a busy machine is not to fail it.
            self.assertLess(time.monotonic() - begun, 5)
            for process in processes:
                process.kill()
                process.wait()
                process.stdout.close()


if __name__ == "__main__":
    unittest.main()
