"""Streams of guests, and the making of an initramfs."""

import lzma
import pathlib
import unittest

from rdma_vm import image
from rdma_vm.errors import Refusal
from rdma_vm.session import Lines, Output, held_back

TOKEN = b"\x01token"


class Streams(unittest.TestCase):
    def test_a_stream_ends_at_its_token_wherever_it_is_cut(self):
        text = b"one\x01two\n\x01tok\x01token"
        for first in range(len(text) + 1):
            for second in range(first, len(text) + 1):
                output = Output(TOKEN)
                taken = b"".join(output.take(part) for part in (text[:first], text[first:second], text[second:]))
                self.assertEqual((taken, output.is_ended), (b"one\x01two\n\x01tok", True), (first, second))

    def test_text_that_cannot_be_the_token_is_passed_on_at_once(self):
        output = Output(TOKEN)
        self.assertEqual(output.take(b"prompt> "), b"prompt> ")
        self.assertFalse(output.is_ended)

    def test_what_a_broken_stream_held_back_is_not_lost(self):
        output = Output(TOKEN)
        self.assertEqual(output.take(b"end\x01to") + output.rest(), b"end\x01to")

    def test_what_is_held_back_is_shorter_than_the_token(self):
        self.assertEqual([held_back(text, TOKEN) for text in (b"", b"\x01", b"a\x01to", b"\x01toke", b"\x01tox")], [0, 1, 3, 5, 0])

    def test_lines_are_whole_and_labelled(self):
        lines = Lines(b"host1: ")
        self.assertEqual(lines.take(b"a\nb"), b"host1: a\n")
        self.assertEqual(lines.take(b"c\n\nd"), b"host1: bc\nhost1: \n")
        self.assertEqual((lines.rest(), lines.rest()), (b"host1: d", b""))


def module(depends):
    return b"\x7fELF\0depends=" + depends + b"\0name=x\0"


class Image(unittest.TestCase):
    def test_modules_come_after_what_they_need_and_once(self):
        contents = {"a": module(b"b-x,c"), "b_x": module(b"c,in"), "c": module(b""), "d": module(b"a"), "unused": module(b"")}
        self.assertEqual(image.order_modules(["a", "d", "c"], contents, {"in"}), ["c", "b_x", "a", "d"])

    def test_a_module_that_the_kernel_lacks_is_named(self):
        with self.assertRaisesRegex(Refusal, "'rdma_rxe'"):
            image.order_modules(["rdma_rxe"], {}, set())

    def test_names_of_modules(self):
        self.assertEqual(image.module_name("lib/modules/6.1/kernel/a/ib-core.ko.xz"), "ib_core")

    def test_an_archive_holds_its_files_aligned_and_after_their_folders(self):
        data = image.write_archive([("init", 0o755, b"#!x"), ("modules/a", 0o644, b"12345")])
        found, at = [], 0
        while True:
            fields = [int(data[at + 6 + 8 * index : at + 14 + 8 * index], 16) for index in range(13)]
            self.assertEqual((data[at : at + 6], at % 4), (b"070701", 0))
            mode, size, length = fields[1], fields[6], fields[11]
            name = data[at + 110 : at + 110 + length - 1].decode()
            begin = -(-(at + 110 + length) // 4) * 4
            if name == "TRAILER!!!":
                break
            found.append((name, mode, data[begin : begin + size]))
            at = -(-(begin + size) // 4) * 4
        self.assertEqual(found, [("modules", 0o040755, b""), ("init", 0o100755, b"#!x"), ("modules/a", 0o100644, b"12345")])

    def test_a_kernel_is_unpacked_only_if_qemu_can_start_what_is_in_it(self):
        core = b"\x7fELF" + image.PVH_NOTES[1] + bytes(99)
        wrapped = b"MZ" + image.XZ_MAGIC + b"not one" + lzma.compress(core) + b"tail"
        self.assertEqual(image.unpack_kernel(wrapped), core)
        for other in (b"MZ" + lzma.compress(core[:4] + bytes(99)), b"MZ" + lzma.compress(core[1:]), b"MZ", b""):
            self.assertEqual(image.unpack_kernel(other), other)

    def test_the_cache_is_below_cargo_s_target(self):
        self.assertEqual(image.default_cache({"CARGO_TARGET_DIR": "/t"}), pathlib.Path("/t/rdma-vm"))
        self.assertEqual(image.default_cache({}).parts[-2:], ("target", "rdma-vm"))

    def test_another_kernel_is_another_image(self):
        self.assertNotEqual(image.key_of(["linux-6.1", "busybox"]), image.key_of(["linux-6.2", "busybox"]))


if __name__ == "__main__":
    unittest.main()
