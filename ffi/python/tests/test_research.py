"""Fusion, partial and sparse allreduces, and the pure functions."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import unittest

import linerate
import numpy
import ranks


def policies(comm):
    return [
        {},
        {"policy": "solo", "staleness_max": 3},
        {"policy": "quorum", "quorum": 2, "rounds_in_flight": 2},
        {"policy": "full"},
        {"policy": "random-initiator", "seed": 7},
        {"policy": "deadline", "deadline": 0.002, "quorum": 1},
        {"policy": "solo", "limiter": 2},
        {"policy": "solo", "delivery": "merged", "staleness_max": None},
    ]


def conserve(comm):
    """Every gradient is in exactly one sum, with a rank that is slow in some steps."""
    count, steps = 600, 12
    for options in policies(comm):
        partial = comm.partial(count, "i64", divisor="one", **options)
        gradient, update = numpy.zeros(count, "i8"), numpy.zeros(count, "i8")
        submitted, delivered, reports = numpy.zeros(count, "i8"), numpy.zeros(count, "i8"), []

        def visit(report):
            nonlocal delivered
            delivered += update
            reports.append(report)

        for step in range(steps):
            if comm.rank == 1 and step % 3 == 1:
                time.sleep(0.004)
            gradient[:] = numpy.arange(count) * (step + 1) + comm.rank
            submitted += gradient
            if step % 2 == 0:
                report = partial.exchange(gradient, update)
            else:
                assert partial.submit(gradient) == step
                gradient[:] = -1  # It was copied.
                report = partial.next(update)
            if report is not None:
                visit(report)
        while (report := partial.try_next(update)) is not None:
            visit(report)
        ended = partial.finish(update, visit)
        assert reports[-1].is_last and reports[-1].round == ended[-1].round, reports
        comm.all_reduce(submitted)
        numpy.testing.assert_array_equal(delivered, submitted, str(options))
        is_ordered = options.get("delivery", "ordered") == "ordered"
        if is_ordered:
            assert [report.round for report in reports] == list(range(steps + 1)), reports
            assert all(report.rounds == 1 for report in reports)
            assert sum(report.generations for report in reports) == steps * comm.ranks
        if options.get("policy") == "full":
            assert {report.waited for report in reports} == {"full"}
            assert all(report.active == tuple(range(comm.ranks)) for report in reports[:-1])
        for report in reports:
            assert isinstance(report.staleness, tuple) and set(report.active) <= set(report.included)
            assert report.divisor == 1 and report.dead == () and "RoundReport(round" in repr(report)
        assert partial.lag() >= 0 and repr(partial) == f"linerate.PartialAllreduce({count} of i64)"
        partial.close()
        partial.close()
        refuse(comm, "closed", partial.submit, gradient)


def refuse(comm, word, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except linerate.InvalidArgument as error:
        assert word in str(error) and isinstance(error, ValueError), error
    else:
        raise AssertionError(f"not refused: {word}")


def one_slow_rank(comm):
    """The others do not wait for it, and its gradients come late."""
    partial = comm.partial(4, policy="solo", divisor="one", staleness_max=64)
    queue, update, reports = comm.completion_queue(), numpy.zeros(4, "f4"), []
    comm.barrier()
    for step in range(12):
        if comm.rank == 2:
            time.sleep(0.03)
        partial.submit(numpy.full(4, comm.rank + 1, "f4"))
        partial.notify(queue, step)
        assert queue.wait()[0][:2] == (step, None)
        reports.append(partial.try_next(update))
        if reports[-1].included == (0, 1, 2) and reports[-1].generations == 3:
            assert update[0] == 6, reports[-1]
    reports += partial.finish(update)
    late = sum(sum(report.staleness[1:]) for report in reports)
    return late, sum(2 not in report.active for report in reports[:-1])


def lose_one(comm, survive):
    partial = comm.partial(8, "i64", policy="full", divisor="one", survive=survive)
    update, dead = numpy.zeros(8, "i8"), ()
    for step in range(6):
        if comm.rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            report = partial.exchange(numpy.ones(8, "i8"), update)
        except linerate.Error as error:
            cause = error.first_cause
            return type(cause).__name__, cause.ranks
        dead = report.dead
    partial.finish(update)
    return dead, int(update[0])


ALGORITHMS = [
    "oktopk", "topka", "topka2", "topkdsa", "topkdsa-small", "topkdsa-big", "topkdsa-doubling", "gtopk",
    "gaussiank", "dense", "auto",
]


def gradients_of(comm, counts, step):
    draw = numpy.random.default_rng(100 * step + comm.rank)
    return [draw.integers(-9, 10, count).astype("f4") for count in counts]


def conserve_sparse(comm):
    """What all ranks submit is delivered or in the residuals, in integers."""
    counts, names = [400, 0, 77], ["weight", "nothing", "bias"]
    for algorithm in ALGORITHMS:
        for more in ({}, {"per_tensor": True}):
            sparse = comm.sparse(list(zip(names, counts)), density=0.05, algorithm=algorithm, **more)
            submitted = [numpy.zeros(count, "f4") for count in counts]
            delivered = [numpy.zeros(count, "f4") for count in counts]
            for step in range(4):
                gradients = gradients_of(comm, counts, step)
                for total, gradient in zip(submitted, gradients):
                    total += gradient
                if step == 0:
                    report = sparse.run(gradients)
                    sparse.add_to(delivered)
                else:
                    report = sparse.all_reduce(gradients)
                    for total, gradient in zip(delivered, gradients):
                        total += gradient
                assert report.steps == step + 1 and report.k == sparse.k
            check_conserved(comm, sparse, submitted, delivered)
            indices, values = map(numpy.asarray, sparse.entries(2))
            dense = numpy.zeros(77, "f4")
            dense[indices] = values
            numpy.testing.assert_array_equal(dense, gradients[2])
            assert (numpy.diff(indices.astype("i8")) > 0).all()
            sparse.close()
    assert sparse.tensors == list(zip(names, counts))


def check_conserved(comm, sparse, submitted, delivered):
    for tensor, (total, given) in enumerate(zip(submitted, delivered)):
        residual = numpy.zeros_like(total)
        sparse.read_residual(residual, tensor)
        numpy.testing.assert_array_equal(residual, numpy.asarray(sparse.residual(tensor)))
        left = residual.copy()
        comm.all_reduce(left)
        comm.all_reduce(total)
        numpy.testing.assert_array_equal(given + left, total)


def hook(comm):
    """Buckets as a hook of DDP has them: started in turn, awaited later, flushed at the end."""
    counts = [300, 5000]
    buckets = [comm.duplicate() for _ in counts]
    sparses = [bucket.sparse(count, density=0.02, is_average=True) for bucket, count in zip(buckets, counts)]
    queue = comm.completion_queue()
    submitted = [numpy.zeros(count, "f4") for count in counts]
    delivered = [numpy.zeros(count, "f4") for count in counts]
    for step in range(6):
        memory = [comm.alloc(count) for count in counts]
        gradients = [numpy.asarray(one) for one in memory]
        for own, gradient, total in zip(gradients_of(comm, counts, step), gradients, submitted):
            gradient[:] = own * comm.ranks
            total += gradient
        # Registered memory in place, and an array of its own.
        outputs = [memory[0], numpy.empty(counts[1], "f4")]
        steps = [
            sparse.all_reduce(gradient, output, async_op=True)
            for sparse, gradient, output in zip(sparses, gradients, outputs)
        ]
        if step == 0:
            assert all(one.wait() and one.done() for one in steps)
        elif step == 1:
            for number, one in enumerate(steps):
                one.notify(queue, number)
            seen = set()
            while len(seen) < len(steps):
                seen |= {user for user, error, _ in queue.wait() if error is None}
            assert all(one.wait(10) for one in steps)
        elif step == 2:

            async def both():
                await asyncio.gather(*steps)

            asyncio.run(both())
        else:
            while not all(one.done() for one in steps):
                time.sleep(0.0001)
        for one, total, output in zip(steps, delivered, outputs):
            assert one.report.selected_global > 0 and one.exception() is None
            assert repr(one) == "linerate.SparseStep(ended)" and one.communicator.rank == comm.rank
            total += numpy.asarray(output)
    for sparse, given, own in zip(sparses, delivered, submitted):
        report = sparse.flush_residual()
        assert report.is_dense and not numpy.asarray(sparse.residual()).any()
        sparse.add_to(given)
        comm.all_reduce(own, op="avg")
        numpy.testing.assert_allclose(given, own, rtol=1e-5, atol=1e-3)
    # Nobody holds the step, and nobody else its memory.
    sparses[0].all_reduce(numpy.ones(300, "f4"), async_op=True)
    del sparses, sparse
    gc.collect()
    comm.barrier()


def resume(comm):
    """A job that loads a checkpoint goes on as the one that wrote it."""
    counts = [500]
    first = comm.sparse(500, k=20)
    for step in range(3):
        first.all_reduce(gradients_of(comm, counts, step)[0])
    saved, residual = first.save(), numpy.empty(500, "f4")
    first.read_residual(residual)
    second = comm.sparse(500, k=20)
    second.load(saved)
    assert second.steps == first.steps == 3
    third = comm.sparse(500, k=20)
    third.write_residual(residual)
    for step in range(3, 6):
        results = [gradients_of(comm, counts, step)[0] for _ in range(3)]
        for sparse, result in zip([first, second, third], results):
            sparse.all_reduce(result)
        numpy.testing.assert_array_equal(results[0], results[1])
        numpy.testing.assert_array_equal(results[0], results[2])
    numpy.asarray(first.residual())[:] = 1
    first.scale_residuals(3)
    first.read_residual(residual)
    assert (residual == 3).all()
    first.reset()
    first.read_residual(residual)
    assert not residual.any()
    indices, values = map(numpy.asarray, second.picks())
    assert len(indices) == 20 and values.dtype == numpy.float32
    other = comm.sparse(499, k=20)
    try:
        other.load(saved)
    except linerate.Malformed as error:
        assert isinstance(error, ValueError)
    else:
        raise AssertionError("it was saved with other tensors")
    second.load(saved, is_resized=True)


def not_finite(comm):
    sparse = comm.sparse(50, k=5)
    bad = numpy.ones(50, "f4")
    if comm.rank == 0:
        bad[7] = numpy.nan
    try:
        sparse.all_reduce(bad)
    except linerate.NotFinite as error:
        assert isinstance(error, ArithmeticError)
    else:
        raise AssertionError("a value is not finite")
    assert not numpy.asarray(sparse.residual()).any()
    skipping = comm.sparse(50, k=5, non_finite="skip")
    report = skipping.all_reduce(bad)
    assert report.is_skipped and report.not_finite >= 1 and not bad.any()
    assert "skipped" in repr(report) and skipping.steps == 0


TENSORS = [("weight", 3000), ("nothing", 0), ("index", 40, "i64"), ("bias", 10), ("large", 9000)]
NUMPY = {"f32": "f4", "i64": "i8"}


def fused(comm):
    """Sums of declared tensors, announced in any order, over all kinds of memory."""
    kept = comm.alloc(9000)
    plan = linerate.fusion_plan(TENSORS, bytes_max=20000)
    assert plan == [[4], [0, 3], [2]], plan
    for options in ({}, {"bytes_max": 20000, "age_max": 0}, {"plan": plan}, {"tensors_max": 1, "buffers_count": 1}):
        fusion = comm.fusion(TENSORS, **options)
        queue = comm.completion_queue()
        assert [count for _, count, _ in fusion.tensors] == [3000, 0, 40, 10, 9000]
        for step in range(4):
            memory = [numpy.full(count, comm.rank + step, NUMPY[dtype]) for _, count, dtype in fusion.tensors]
            memory[4] = numpy.asarray(kept)
            memory[4][:] = comm.rank + step
            if step == 0:
                report = fusion.all_reduce(memory)
            else:
                order = list(range(len(TENSORS)))
                for tensor in order if comm.rank % 2 else reversed(order):
                    fusion.announce(tensor, kept if tensor == 4 else memory[tensor])
                if step == 1:
                    fusion.end_of_backward()
                    fusion.notify(queue, 9)
                    assert queue.wait() == [(9, None, None)]
                report = fusion.wait()
            total = sum(rank + step for rank in range(comm.ranks))
            assert all((own == total).all() for own in memory), (options, step)
            assert report.step == step and report.bytes == 12010 * 4 + 320
            assert 0 <= report.begin <= report.backward_end <= report.done <= fusion.now()
            assert 0 <= report.overlap <= 1 and report.communication >= 0 and report.exposed >= 0
            assert "step" in repr(report) and any("f32" in repr(flush) for flush in report.flushes)
            flushed = sorted(tensor for flush in report.flushes for tensor in flush.tensors)
            assert flushed == [0, 2, 3, 4], report.flushes
            if "plan" in options:
                assert [list(flush.tensors) for flush in report.flushes] == plan and report.rounds_count == 0
        fusion.close()
        refuse(comm, "closed", fusion.wait)
    comm.barrier()


def forgotten(comm):
    """A tensor that a rank does not announce is named, and the communicator goes on."""
    fusion = comm.fusion([("weight", 4), ("bias", 2)])
    fusion.announce(0, numpy.ones(4, "f4"))
    if comm.rank == 0:
        fusion.announce(1, numpy.ones(2, "f4"))
    try:
        fusion.wait()
    except linerate.Error as error:
        assert "bias" in str(error) and "rank 1" in str(error), error
    else:
        raise AssertionError("a tensor is missing")
    del fusion
    comm.barrier()


def wait_for_a_sleeper(comm):
    """A rank that does not come is named when the timeout has passed."""
    partial, fusion = comm.partial(4, policy="full"), comm.fusion([("weight", 4)])
    sparse = comm.duplicate().sparse(400)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(60)
    fusion.announce(0, numpy.ones(4, "f4"))
    step, told = sparse.run(numpy.ones(400, "f4"), async_op=True), []
    assert not step.wait(0.05)
    for wait in (step.wait, fusion.wait, lambda: partial.exchange(numpy.ones(4, "f4"))):
        try:
            wait()
        except linerate.Error as error:
            told.append((type(error.first_cause).__name__, error.first_cause.ranks))
    told.append((type(step.exception().first_cause).__name__, repr(step)))
    return told


def fork(comm):
    """A forked child gets errors, and its end does not disturb the parent."""
    partial, fusion, sparse = comm.partial(4), comm.fusion([("weight", 4)]), comm.sparse(4)
    data = numpy.ones(4, "f4")
    child = os.fork()
    if child == 0:
        status = 0
        for call in (
            lambda: partial.exchange(data),
            lambda: fusion.announce(0, data),
            fusion.wait,
            lambda: sparse.run(data),
        ):
            try:
                call()
                status = 1
            except linerate.Forked:
                pass
        del partial, fusion, sparse
        gc.collect()
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    partial.exchange(data)
    fusion.all_reduce([data])
    sparse.all_reduce(data)
    partial.finish(data)
    comm.barrier()


class Ranks(unittest.TestCase):
    def test_a_rank_that_does_not_come_is_named(self):
        processes, results = ranks.start(wait_for_a_sleeper, 2, settings={"LINERATE_TIMEOUT": "1"})
        _, told, error = results.get(timeout=60)
        processes[1].kill()
        self.assertIsNone(error)
        self.assertEqual(told, [("Timeout", (1,))] * 3 + [("Timeout", "linerate.SparseStep(failed)")])
        for process in processes:
            process.join()

    def test_a_forked_child_has_errors(self):
        ranks.run(fork, 2)

    def test_fused_tensors_are_reduced(self):
        for transport in ("shm", "tcp"):
            ranks.run(fused, 3, settings={"LINERATE_TRANSPORT": transport})

    def test_a_tensor_that_is_forgotten_is_named(self):
        ranks.run(forgotten, 2)

    def test_partial_allreduces_deliver_every_gradient_once(self):
        ranks.run(conserve, 3)

    def test_a_slow_rank_holds_nobody_up_and_is_late(self):
        told = ranks.run(one_slow_rank, 3)
        self.assertEqual(len(set(told)), 1, told)
        late, without = told[0]
        self.assertTrue(late > 0 and without > 0, told)

    def test_a_rank_that_dies_is_named_or_survived(self):
        for survive, wanted in ((False, ("PeerFailed", (1,))), (True, ((1,), 0))):
            processes, results = ranks.start(lose_one, 3, survive)
            for _ in range(2):
                _, told, error = results.get(timeout=60)
                self.assertIsNone(error)
                self.assertEqual(told, wanted)
            for process in processes:
                process.join()

    def test_sparse_allreduces_deliver_or_keep_everything(self):
        ranks.run(conserve_sparse, 3)

    def test_steps_that_are_started(self):
        for transport in ("shm", "tcp"):
            ranks.run(hook, 2, settings={"LINERATE_TRANSPORT": transport})

    def test_residuals_are_saved_and_loaded(self):
        ranks.run(resume, 2)

    def test_values_that_are_not_finite(self):
        ranks.run(not_finite, 2)


class Alone(ranks.Alone):
    def test_options_that_do_not_exist_are_refused_by_name(self):
        partial, sparse = self.comm.partial, self.comm.sparse
        self.refused("policy is 'most': one of solo majority", partial, 4, policy="most")
        self.refused("quorum of 2", partial, 4, policy="quorum", quorum=2)
        self.refused("'quorum' needs quorum", partial, 4, policy="quorum")
        self.refused("'deadline' needs deadline", partial, 4, policy="deadline")
        self.refused("'solo' has none", partial, 4, policy="solo", seed=3)
        self.refused("deadline is -1", partial, 4, policy="deadline", deadline=-1)
        self.refused("limiter", partial, 4, limiter=0)
        self.refused("staleness_max is 1025", partial, 4, staleness_max=1025)
        self.refused("needs staleness_max", partial, 4, staleness_max=None)
        self.refused("rounds_in_flight is 5", partial, 4, rounds_in_flight=5)
        self.refused("delivery is 'late'", partial, 4, delivery="late")
        self.refused("divisor is 'two'", partial, 4, divisor="two")
        self.refused("unknown type", partial, 4, "f31")
        self.refused("0 elements", partial, 0)
        with self.assertRaisesRegex(TypeError, "polici"):
            partial(4, polici="solo")
        with self.assertRaises(OverflowError):
            sparse(-4)
        with self.assertRaises(TypeError):
            sparse(4.5)
        self.refused("unknown sparse algorithm", sparse, 4, algorithm="best")
        self.refused("give one of them", sparse, 4, density=0.5, k=1)
        self.refused("density of 1.5", sparse, 4, density=1.5)
        self.refused("count of 0", sparse, 4, k=0)
        self.refused("mode is 'fast'", sparse, 4, mode="fast")
        self.refused("reuse_steps is 0", sparse, 4, reuse_steps=0)
        self.refused("repartition_steps is 0", sparse, 4, repartition_steps=0)
        self.refused("regions is 'odd'", sparse, 4, regions="odd")
        self.refused("unknown balancing", sparse, 4, balance="odd")
        self.refused("switch is 'odd'", sparse, 4, switch="odd")
        self.refused("unknown value format", sparse, 4, values="f64")
        self.refused("indices is 'u8'", sparse, 4, indices="u8")
        self.refused("unknown policy", sparse, 4, non_finite="odd")
        self.refused("takes f32", sparse, [("a", 4, "f64")])
        self.refused("two tensors are named", sparse, [("a", 4), ("a", 4)])
        self.refused("tensor 1 is a list", sparse, [("a", 4), ["b", 4]])
        self.refused("tensor 0 is", sparse, [("a", -4)])

    def test_options_of_fusion_are_refused_by_name(self):
        fusion = self.comm.fusion
        self.refused("bytes_max is 0", fusion, TENSORS, bytes_max=0)
        self.refused("age_max is", fusion, TENSORS, age_max=3601)
        self.refused("age_max is -1", fusion, TENSORS, age_max=-1)
        self.refused("tensors_max is 0", fusion, TENSORS, tensors_max=0)
        self.refused("buffers_count is 9", fusion, TENSORS, buffers_count=9)
        self.refused("unknown operator", fusion, TENSORS, op="mean")
        self.refused("bitand", fusion, TENSORS, op="bitand")
        self.refused("flush 0 of the plan is empty", fusion, TENSORS, plan=[[]])
        self.refused("in no flush", fusion, TENSORS, plan=[[0]])
        self.refused("mixes", fusion, TENSORS, plan=[[0, 2], [3], [4]])
        made = fusion([("weight", 4)])
        self.refused("tensor 1 announced", made.announce, 1, numpy.zeros(4, "f4"))
        self.refused("memory has 5 elements of f32", made.announce, 0, numpy.zeros(5, "f4"))
        self.refused("read-only", made.announce, 0, b"1234")
        self.refused("list of 2, and 1", made.all_reduce, [1, 2])
        made.announce(0, numpy.zeros(4, "f4"))
        self.refused("twice", made.announce, 0, numpy.zeros(4, "f4"))
        self.assertEqual(len(made.wait().flushes), 1)

    def test_schedules_times_and_plans_are_pure(self):
        text = linerate.schedule("all_reduce", "ring", 3, 1)
        self.assertTrue(text.startswith("ring, rank 1 of 3\n"), text)
        self.assertEqual(text.count("send"), 4)
        self.assertIn("in place", linerate.schedule("broadcast", "tree", 5, root=2, in_place=True))
        self.assertIn("hierarchical", linerate.schedule("all_reduce", "hierarchical", 4, hosts=[0, 0, 1, 1]))
        self.refused("no algorithm 'best': it has line", linerate.schedule, "all_reduce", "best", 3)
        self.refused("unknown collective", linerate.schedule, "reduce_all", "ring", 3)
        self.refused("rank 3", linerate.schedule, "all_reduce", "ring", 3, 3)
        self.refused("1 hosts given for 3", linerate.schedule, "all_reduce", "ring", 3, hosts=[0])
        self.refused("0 ranks", linerate.schedule, "all_reduce", "ring", 0)
        times = linerate.cost("all_reduce", 1 << 26, ranks=16, hosts=range(16))
        self.assertEqual(list(times.values()), sorted(times.values()))
        self.assertIn("ring", times)
        self.assertNotIn("direct", times)
        # 100 Gbit/s: twice 15/16 of 256 MiB take 43 ms at least.
        self.assertGreater(times["ring"], 0.04)
        shared = linerate.cost("all_reduce", 1000, "bf16", ranks=4, cores=2, is_registered=True)
        self.assertIn("direct", shared)
        self.assertEqual(set(linerate.cost("barrier", 0, ranks=2)), set(linerate.algorithms("barrier")))
        self.refused("cores is 0", linerate.cost, "all_reduce", 4, ranks=2, cores=0)
        self.refused("ranks, which is 1 to", linerate.cost, "all_reduce", 4, ranks=1 << 31)
        self.assertEqual(linerate.fusion_plan([("a", 4), ("b", 4), ("c", 4)], tensors_max=2), [[0, 1], [2]])
        self.refused("bytes_max is 0", linerate.fusion_plan, TENSORS, bytes_max=0)

    def test_steps_on_other_networks_are_predicted(self):
        trace = linerate.Trace.load("resnet50")
        self.assertEqual((trace.name, trace.bytes, len(trace.gradients)), ("resnet50", 102228128, 161))
        self.assertAlmostEqual(trace.step, 0.12808580219559176)
        # As published.
        told = trace.predict(gpus=64, gbit=10)
        self.assertAlmostEqual(told.scaling_factor, 0.5397, places=4)
        self.assertEqual((told.low, told.limited_by, told.flushes), (told.scaling_factor, "wire", 12))
        self.assertAlmostEqual(told.overhead, told.step / told.scaling_factor - told.step)
        wide = trace.predict(gpus=64, gbit=10, errors=(0.9, 1.2))
        self.assertLess(wide.low, wide.scaling_factor)
        for algorithm in ("auto", "tree", "oktopk:0.01", "partial:0.5", "ps:4", "switchml", "bytescheduler"):
            with self.subTest(algorithm):
                shown = trace.predict(gpus=16, gbit=10, algorithm=algorithm, latency=1e-5, wire_dtype="bf16")
                self.assertTrue(0 < shown.low <= shown.scaling_factor <= shown.high <= 1, shown)
        servers = trace.predict(gpus=16, gbit=1, gpus_per_server=8)
        self.assertAlmostEqual(servers.scaling_factor, 0.144, places=3)
        points = [(gbit, 16, trace.predict(gpus=16, gbit=gbit, operation=0.008).scaling_factor) for gbit in (1, 10, 100)]
        found = trace.fit(points)
        self.assertAlmostEqual(found["operation"][2], 0.008, places=4)
        self.assertGreater(found["operation"][3], 0.99)
        # A ring of two sends a flush once: 1 MB at 1 Gbit/s.
        own = linerate.Trace([("a", 0.01, 250000, "f32")], step=0.02)
        self.assertAlmostEqual(own.predict(gpus=2, gbit=1, adding=float("inf")).overhead, 0.008)
        self.assertEqual(own.gradients, (("a", 0.01, 250000, "f32"),))
        self.refused("gradient 0 comes -1", linerate.Trace, [("a", -1e-6, 4, "f32")])
        self.refused("unknown", linerate.Trace, [("a", 0.0, 4, "f31")])
        self.refused("/nowhere", linerate.Trace.load, "/nowhere")
        self.refused("the number of GPUs is 0", trace.predict, gpus=0, gbit=1)
        self.refused("fused_as is 'x'", trace.predict, gpus=2, gbit=1, fused_as="x")
        self.refused("fusion_age is -1", trace.predict, gpus=2, gbit=1, fusion_age=-1.0)
        self.refused("1 measured scaling factors", trace.fit, points[:1])

    def test_collectives_run_on_fabrics(self):
        told = linerate.fabric_times("100g", "all_reduce", ranks=16, bytes=64 << 20)
        # 2 * 15 / 16 of the bytes at 12.5 GB/s.
        self.assertTrue(0.010066 < told.time < 0.011, told)
        self.assertEqual(told.algorithm, "ring")
        self.assertGreater(told.uses["NICs"][0], 0.9)
        self.assertAlmostEqual(sum(seconds for _, seconds in told.path), told.time)
        slow = linerate.fabric_times('{"nic_gbit": 50}', "all_reduce", ranks=16, bytes=64 << 20, algorithm="ring")
        self.assertGreater(slow.time, 1.9 * told.time)
        self.refused("fabric '1g' is not known", linerate.fabric_times, "1g", "all_reduce", ranks=2, bytes=8)
        self.refused("unknown field", linerate.fabric_times, '{"gbit": 1}', "all_reduce", ranks=2, bytes=8)

    def test_a_choice_is_explained(self):
        comm = ranks.alone({"LINERATE_TRANSPORT": "shm"})
        self.addCleanup(comm.close)
        told = comm.explain("all_reduce", 1 << 20, op="avg")
        self.assertIn(told.algorithm, told.candidates)
        self.assertEqual(told.predicted, told.candidates[told.algorithm])
        self.assertEqual(told.why, "the cheapest")
        self.assertNotIn("direct", told.candidates)
        named = comm.explain("all_reduce", 1 << 20, algorithm="ring", is_registered=True)
        self.assertEqual((named.algorithm, named.path), ("ring", "messages"))
        self.assertIn("named by the call", repr(named))
        self.assertIn("direct", named.candidates)
        self.assertGreater(named.chunk_bytes, 0)
        self.refused("no algorithm", comm.explain, "all_reduce", 4, algorithm="best")

    def test_memory_that_does_not_fit_is_refused_by_name(self):
        partial, sparse = self.comm.partial(4), self.comm.sparse([("a", 4), ("b", 2)], k=1)
        four = numpy.zeros(4, "f4")
        read_only = numpy.zeros(4, "f4")
        read_only.flags.writeable = False
        self.refused("gradient has 5 elements of f32, and 4", partial.submit, numpy.zeros(5, "f4"))
        self.refused("gradient has 4 elements of f64", partial.submit, numpy.zeros(4))
        self.refused("update is read-only", partial.exchange, four, read_only)
        self.refused("gradient is read-only", partial.exchange, read_only)
        self.refused("not aligned", partial.submit, (1, 4, "f32"))
        self.refused("none is due", partial.notify, self.comm.completion_queue(), 1)
        self.assertIsNone(partial.next(four))
        self.assertIsNotNone(partial.exchange(read_only, four))
        two = numpy.zeros(2, "f4")
        self.refused("list of 2 arrays", sparse.run, four)
        self.refused("list of 1", sparse.run, [four])
        self.refused(r"gradients\[1\] has 4", sparse.run, [four, four])
        self.refused("outputs.0. is read-only", sparse.all_reduce, [four, two], [read_only, two])
        self.refused("tensor 2: 2 are declared", sparse.residual, 2)
        self.refused("output has 4", sparse.read_residual, four, 1)
        self.refused("before a step", sparse.entries)
        self.refused("before a step", sparse.add_to, [four, two])
        sparse.run([read_only, two])
        with self.assertRaises(linerate.Malformed):
            sparse.load(b"bytes")
        sparse.close()
        self.refused("closed", sparse.run, [four, two])
        self.assertEqual(sparse.k, 1)

    def test_reports_are_frozen(self):
        report = self.comm.sparse(100).all_reduce(numpy.ones(100, "f4"))
        self.assertEqual((report.algorithm, report.k, report.selected_global), ("oktopk", 1, 1))
        self.assertEqual(set(report.phases), {"partition", "sizes", "reduce", "select", "balance", "gather", "dense"})
        self.assertEqual(report.traffic.bytes_sent, 0)
        self.assertGreaterEqual(report.select, 0)
        with self.assertRaises(AttributeError):
            report.k = 3
        with self.assertRaises(AttributeError):
            self.comm.partial(4).exchange(numpy.ones(4, "f4")).round = 3

    def test_what_a_visit_raises_is_raised(self):
        partial, update, seen = self.comm.partial(4, rounds_in_flight=2), numpy.zeros(4, "f4"), []
        for step in range(2):
            partial.submit(numpy.full(4, step + 1, "f4"))

        def visit(report):
            seen.append((report.round, update[0]))
            raise KeyError("no such weight")

        with self.assertRaisesRegex(KeyError, "no such weight"):
            partial.finish(update, visit)
        self.assertEqual(seen, [(0, 1)])
        self.assertEqual([report.is_last for report in partial.finish(update)], [True])

    def test_ctrl_c_ends_a_wait_at_once(self):
        program = textwrap.dedent(
            """
            import linerate, numpy, signal, sys, time
            # A shell that starts a job in the background has it ignore the signal.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            rank, job = int(sys.argv[1]), sys.argv[2]
            comm = linerate.Communicator.join(rank, 2, job)
            partial, sparse = comm.partial(4, policy="full"), comm.sparse(400)
            print("ready", flush=True)
            if rank == 1:
                time.sleep(60)
            for wait in (lambda: partial.exchange(numpy.ones(4, "f4")), lambda: sparse.run(numpy.ones(400, "f4"))):
                try:
                    wait()
                except KeyboardInterrupt:
                    print("interrupted", flush=True)
            """
        )
        job = f"python-interrupted-{os.getpid()}-research"
        start = lambda rank: subprocess.Popen(
            [sys.executable, "-c", program, str(rank), job], stdout=subprocess.PIPE, text=True
        )
        processes = [start(rank) for rank in range(2)]
        for process in processes:
            self.assertEqual(process.stdout.readline(), "ready\n")
        for _ in range(2):
            time.sleep(0.3)
            processes[0].send_signal(signal.SIGINT)
            begun = time.monotonic()
            self.assertEqual(processes[0].stdout.readline(), "interrupted\n")
            self.assertLess(time.monotonic() - begun, 5)
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


if __name__ == "__main__":
    unittest.main()
