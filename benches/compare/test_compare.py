"""Tests of the comparison: python3 -m unittest discover --start-directory benches/compare"""

import json
import unittest
import xml.etree.ElementTree

import backend
import capi
import choice
import commands
import instructions
import network
import peers
import picture
import rdma
import rdma_guest
import rows
import table
import wire
from commands import Command, Failed
from measure import Runs, judge, measure


def row(**other):
    ours = Command(("printf", "2.5"), commands.read_last_number)
    return rows.Row(**{"name": "it", "ours": ours, "size": 1 << 20, "bus_factor": 1.0, **other})


def printing(text):
    return Command(("printf", text), commands.read_last_number)


class Judging(unittest.TestCase):
    def judged(self, one):
        return judge(one, measure([one], 2, {}, lambda text: None))

    def test_a_ratio_is_a_speed(self):
        result = self.judged(row(peer=printing("10"), limit=1.0, peer_ratio_min=4.0, limit_ratio_min=0.4))
        self.assertEqual((result["peer_ratio"], result["limit_ratio"], result["met"]), (4.0, 0.4, True))
        self.assertEqual(result["ours_us_all"], [2.5, 2.5])

    def test_one_missed_ratio_is_a_miss(self):
        result = self.judged(row(peer=printing("9"), limit=1.0, peer_ratio_min=4.0, limit_ratio_min=0.4))
        self.assertIs(result["met"], False)
        self.assertEqual(table.cells(result)[-1], "NO")

    def test_what_could_not_be_compared_is_not_judged(self):
        result = self.judged(row(peer=Command(("false",), commands.read_last_number), peer_ratio_min=4.0))
        self.assertIsNone(result["met"])
        self.assertIn("exit code 1: false", result["failures"][0])
        self.assertIn("failed: it: exit code 1", table.build([result]))

    def test_a_missed_limit_counts_without_the_peer(self):
        missing = Command(("no-such-program",), commands.read_last_number)
        result = self.judged(row(peer=missing, peer_ratio_min=4.0, limit=1.0, limit_ratio_min=0.5))
        self.assertIs(result["met"], False)

    def test_the_best_run_counts_with_its_own_numbers(self):
        one, runs = row(limit="alone_us", limit_ratio_min=1 / 1.05), Runs()
        for us, last in ((30.0, 29.0), (20.0, 10.0), (25.0, 25.0)):
            runs.add(one.ours, {"us": us, "alone_us": last})
        result = judge(one, runs)
        self.assertEqual((result["ours_us"], result["limit_us"], result["met"]), (20.0, 10.0, False))

    def test_a_command_of_several_rows_runs_once_a_round(self):
        peer = printing("5")
        runs = measure([row(peer=peer), row(name="other", peer=peer)], 3, {}, lambda text: None)
        self.assertEqual(runs.times(peer), [5.0] * 3)


class Reading(unittest.TestCase):
    def test_a_bench_with_wrong_elements_has_no_time(self):
        document = {"results": [{"time_us": {"p50": 1.5}, "algorithm": "line", "wrong": 0}]}
        self.assertEqual(commands.read_bench(json.dumps(document)), {"us": 1.5, "algorithm": "line"})
        document["results"][0]["wrong"] = 3
        self.assertRaises(ValueError, commands.read_bench, json.dumps(document))

    def test_the_last_flush_is_the_one_that_ends_last(self):
        flushes = [{"ready_ms": 0.5, "start_ms": 1, "end_ms": 9}, {"ready_ms": 2, "start_ms": 2, "end_ms": 4}]
        text = json.dumps({"wrong": 0, "exposed_ms": 2.5, "last_flush_alone_ms": 2.0, "flushes": flushes})
        self.assertEqual(commands.read_replay(text), {"us": 2500.0, "alone_us": 2000.0, "since_ready_us": 8500.0})

    def test_half_a_round_trip_is_the_limit(self):
        self.assertEqual(commands.read_cacheline("cacheline 280.0\n"), {"us": 0.14})

    def test_a_bandwidth_becomes_the_time_of_one_put(self):
        text = json.dumps({"results": [{"bytes": 1000000, "bw": 4.0}]})
        self.assertEqual(commands.read_write_bw(text), {"us": 250.0})

    def test_a_command_without_numbers_is_timed_as_a_whole(self):
        self.assertGreater(Command(("true",), None).run({})["us"], 0)
        self.assertRaises(Failed, Command(("false",), None).run, {})

    def test_output_that_is_none_is_a_failure_with_the_command(self):
        with self.assertRaisesRegex(Failed, "true: cannot read its output"):
            Command(("true",), commands.read_last_number).run({})


class Rows(unittest.TestCase):
    def test_names_are_different(self):
        names = [one.name for one in rows.ROWS + network.ROWS + capi.ROWS + backend.ROWS + rows.OTHER_ROWS]
        self.assertEqual(len(names), len(set(names)))

    def test_a_row_loses_the_sides_whose_programs_are_missing(self):
        one = peers.without_missing(rows.ROWS[0], {"cacheline": "/x"}, ("mpirun", "cacheline"))
        self.assertIsNone(one.peer)
        self.assertIsNotNone(one.limit)

    def test_a_row_of_ours_that_needs_a_missing_program_is_left_out(self):
        names = ("two_hosts",)
        hosts = network.ROWS[-1]
        self.assertFalse(peers.is_there(hosts.ours, {}, names))
        self.assertTrue(peers.is_there(hosts.ours, {"two_hosts": "/x"}, names))

    def test_columns_are_aligned(self):
        lines = table.align([("a", "bb"), ("ccc", "d")])
        self.assertEqual(lines, ["a    bb", "ccc   d"])


class Picture(unittest.TestCase):
    ABOUT = {"cpu": "A <fast> & small CPU", "cores": 2, "time": "2026-01-02T03:04:05Z"}

    def drawn(self, lines):
        text = picture.build(lines, self.ABOUT, 5)
        root = xml.etree.ElementTree.fromstring(text)
        return text, [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]

    def lines(self, busbw):
        return [{"name": one.name, "points": [(size, busbw) for size in picture.SIZES]} for one in picture.SERIES]

    def test_a_picture_names_its_lines_units_machine_and_date(self):
        text, words = self.drawn(self.lines(3.0))
        self.assertTrue({one.name for one in picture.SERIES} <= set(words))
        said = " ".join(words)
        for part in ("GB/s", "1 KiB", "64 MiB", "A <fast> & small CPU, 2 cores, 2026-01-02", "Best of 5 runs"):
            self.assertIn(part, said)
        self.assertLess(len(text), 30_000)

    def test_every_point_lies_in_the_field(self):
        for values in ((0.004, 99.0), (1.0, 1.0), (0.01, 100.0)):
            lines = [{"name": "MPICH", "points": [(picture.SIZES[0], values[0]), (picture.SIZES[-1], values[1])]}]
            root = xml.etree.ElementTree.fromstring(picture.build(lines, self.ABOUT, 1))
            for dot in root.iter("{http://www.w3.org/2000/svg}circle"):
                self.assertTrue(picture.LEFT <= float(dot.get("cx")) <= picture.RIGHT)
                self.assertTrue(picture.TOP <= float(dot.get("cy")) <= picture.BOTTOM)

    def test_what_is_missing_or_failed_has_no_line_and_is_told(self):
        measured = picture.points(lambda command: command.argv[0] != "torch_python")
        runs = Runs()
        for point in measured:
            for one, command in point.sides:
                if one.name == "MPICH":
                    runs.fail(command, "no such program")
                else:
                    runs.add(command, {"us": point.size / 2e3})
        lines = picture.judge(measured, runs)
        self.assertEqual([line["name"].split()[0] for line in lines], ["limit", "linerate", "Open"])
        self.assertEqual(lines[1]["points"], [(size, 2.0) for size in picture.SIZES])
        self.assertEqual(lines[0]["points"][0][0], picture.LIMIT_BYTES_MIN)
        self.assertIn("no such program", picture.failures(measured, runs))
        self.assertNotIn("MPICH", self.drawn(lines)[1])


class Choice(unittest.TestCase):
    def test_a_slow_choice_is_found(self):
        case, runs = choice.Case("allreduce", 2, "registered", 8), Runs()
        runs.add(case.command("auto"), {"us": 4.0, "algorithm": "ring"})
        runs.add(case.command("ring"), {"us": 3.0, "algorithm": "ring"})
        runs.add(case.command("line"), {"us": 2.0, "algorithm": "line"})
        result = choice.judge(case, ["auto", "ring", "line"], runs)
        self.assertEqual((result["chosen"], result["best"], result["loss"]), ("ring", "line", 0.5))
        self.assertEqual(result["failures"], [])
        self.assertIn("slower by", choice.build([result]))
        self.assertIn("0 of 1 choices", choice.build([result]))

    def test_prices_of_this_host_are_those_of_every_run(self):
        own = choice.cases(lambda name: True, True, "/somewhere/prices")
        self.assertTrue(all(case.command("ring").argv[:2] == ("env", "LINERATE_MODEL=/somewhere/prices") for case in own))
        built_in = choice.cases(lambda name: True, True)
        self.assertEqual([case.name for case in own], [case.name for case in built_in])
        self.assertEqual(built_in[0].command("ring").argv[0], "linerate")

    def test_a_refusal_is_no_failure_and_a_crash_is(self):
        case, runs = choice.Case("allreduce", 2, "caller", 8), Runs()
        runs.fail(case.command("direct"), "exit code 2: it needs registered memory")
        runs.fail(case.command("ring"), "exit code 1: wrong")
        runs.fail(case.command("auto"), "exit code 2: no such option")
        result = choice.judge(case, ["auto", "ring", "direct"], runs)
        self.assertEqual(result["failures"], ["exit code 2: no such option", "exit code 1: wrong"])


def lines_of(name, side, *values, **more):
    return [{"round": turn, "name": name, "side": side, "value": value, **more} for turn, value in enumerate(values)]


class Wire(unittest.TestCase):
    def test_a_share_is_of_the_payload_that_the_wire_carries(self):
        # 16 packets of 4096 bytes, each with 82 more, at 12.5 bytes in a nanosecond.
        self.assertAlmostEqual(wire.payload(100, 65536), 12.5 * 65536 / (65536 + 16 * 82 + 16))
        case = wire.perf("write_bw", 100, 65536)
        result = wire.judge(case, [6.0, wire.payload(100, 65536) * 0.99], [])
        self.assertAlmostEqual(result["share"], 0.99)
        self.assertTrue(result["met"])
        self.assertFalse(wire.judge(case, [6.0], [])["met"])
        self.assertIn("failed: " + case["name"] + ": no device", wire.build([wire.judge(case, [], ["no device"])]))


class Rdma(unittest.TestCase):
    def test_medians_are_compared_and_a_ratio_is_a_speed(self):
        case = rdma.bandwidth("write_bw", 1 << 20, 40)
        both = lines_of(case["name"], "ours", 50.0, 97.0, 99.0) + lines_of(case["name"], "peer", 100.0, 10.0, 100.0)
        result = rdma.judge(case, both)
        self.assertEqual((result["ours"], result["peer"], result["ratio"], result["met"]), (97.0, 100.0, 0.97, True))
        case = rdma.latency("write_lat", 8, 1000)
        both = lines_of(case["name"], "ours", 12.0) + lines_of(case["name"], "peer", 10.0)
        result = rdma.judge(case, both)
        self.assertEqual((result["unit"], result["met"]), ("us", False))
        self.assertAlmostEqual(result["ratio"], 1 / 1.2)

    def test_of_several_starts_in_a_round_the_best_counts_and_of_rounds_the_median(self):
        of_round = lambda turn, *values: [{"round": turn, "name": "write_lat 8 B", "side": "ours", "value": value} for value in values]
        lines = of_round(0, 22.0, 11.0, 23.0) + of_round(1, 21.0, 20.0) + of_round(2, 12.0, 30.0)
        self.assertEqual(rdma.judge(rdma.latency("write_lat", 8, 1000), lines)["ours"], 12.0)
        self.assertEqual(rdma.values("write_lat 8 B", "ours", lines, max), [23.0, 21.0, 30.0])

    def test_two_processors_that_are_one_or_two_are_told(self):
        self.assertLess(0.2, rdma_guest.cores())
        self.assertIn("before each round: 0.50, 1.00", rdma.build([], [0.5, 1.0]))

    def test_a_failed_run_is_told_and_not_judged(self):
        case = rdma.bandwidth("write_bw", 1 << 20, 40)
        result = rdma.judge(case, [{"round": 0, "name": case["name"], "side": "peer", "failure": "no device"}])
        self.assertIsNone(result["met"])
        self.assertIn("failed: write_bw 1 MiB: peer: no device", rdma.build([result]))

    def test_an_allreduce_is_set_beside_both_directions_and_its_rest_is_told(self):
        lines = lines_of(rdma.BOTH_WAYS["name"], "peer", 200.0) + lines_of(rdma.BOTH_WAYS["name"], "ours", 150.0)
        times = ((rdma.ALL_REDUCE, 16000.0), (rdma.REDUCE_SCATTER, 8000.0), (rdma.ALL_GATHER, 7000.0), (rdma.SHORT, 100.0))
        counts = {"copied bytes": 0, "written bytes": 1 << 20}
        for case, time_us in times:
            lines += lines_of(case["name"], "ours", time_us, counts=counts)
        results = [rdma.judge(case, lines) for case in rdma.CASES]
        found = rdma.share(results)
        # 1 MiB at 100 MiB/s are 10 ms.
        self.assertEqual((found["share"], found["met"]), (0.625, True))
        self.assertEqual(found["parts_us"], {"wire": 10000.0, "reduction": 1000.0, "control": 100.0, "waits": 4900.0})
        self.assertIn("copied by processors, allreduce 1 MiB: 0 of 1048576", rdma.build(results))

    def test_perftest_s_row_is_read_and_nothing_else(self):
        text = " #bytes #iterations\n 65536      300              45.10              44.00\t\t   0.000704\n---\n"
        self.assertEqual(rdma_guest.read_perftest(text)[3], 44.0)
        self.assertRaises(rdma_guest.Failed, rdma_guest.read_perftest, "no row\n")


class Instructions(unittest.TestCase):
    def test_functions_belong_to_the_part_that_their_path_names(self):
        text = (
            "1,000 (100.0%)  PROGRAM TOTALS\n"
            "  600 (60.0%)  ./src/engine/mod.rs:linerate::engine::Engine::drive [/x/engine]\n"
            "  300 (30.0%)  ./src/a.rs:<linerate::transport::shm::Shm as linerate::Transport>::poll [/x]\n"
            "  100 (10.0%)  ???:memcpy [/lib/libc.so.6]\n"
        )
        self.assertEqual(instructions.parse(text), {"engine": 600, "comm": 0, "transport": 300, "kernel": 0, "other": 100})

    def test_samples_are_told_by_module(self):
        text = """# Samples: 60  of event 'cpu-clock'
    50.00%            30  engine   engine               [.] linerate::engine::rounds::<impl linerate::engine::Engine>::run_round
    33.33%            20  engine   engine               [.] <linerate::transport::shm::ShmTransport as linerate::transport::Transport>::poll
    16.67%            10  engine   [kernel.kallsyms]    [k] finish_task_switch
"""
        expected = {"engine": 30, "comm": 0, "transport": 20, "kernel": 0, "other": 10}
        self.assertEqual(instructions.parse_samples(text), expected)


if __name__ == "__main__":
    unittest.main()
