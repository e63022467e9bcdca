#!/usr/bin/env python3
"""Writes the hand-made seeds of corpus/fuzz_codec.  The first byte: 1 refuses an allocation (its number above), 2 means frames."""
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))


def n(tag, count):
    return tag + struct.pack("<I", count)


def i(v):
    return b"i" + struct.pack("<q", v)


def s(text):
    return n(b"s", len(text)) + text


def big(sign, magnitude):
    return b"I" + bytes([sign]) + struct.pack("<I", len(magnitude)) + magnitude


def values():
    yield "none", b"N"
    yield "scalars", n(b"t", 9) + b"NTF" + i(-(2 ** 63)) + i(2 ** 63 - 1) + b"d" + struct.pack("<d", -0.5) + b"c" + struct.pack("<dd", 1, 2) + s(b"x\xed\xa0\x80") + n(b"b", 2) + b"\0\1"
    yield "big", n(b"l", 4) + big(0, b"\0" * 8 + b"\1") + big(1, b"\xff" * 40) + big(1, b"") + big(0, b"\0" * 9)
    yield "containers", n(b"D", 2) + s(b"a") + n(b"l", 2) + i(1) + n(b"S", 1) + i(2) + n(b"t", 0) + n(b"Z", 2) + i(3) + n(b"B", 1) + b"x"
    yield "unhashable", n(b"S", 1) + n(b"l", 0)
    yield "unhashable_key", n(b"D", 1) + n(b"S", 0) + b"N"
    yield "handle", b"h" + struct.pack("<Q", 2 ** 64 - 1)
    yield "extended", b"x" + s(b"decimal") + s(b"1.5")
    yield "extended_nested", b"x" + s(b"counter") + n(b"D", 1) + i(1) + b"x" + s(b"range") + n(b"t", 3) + i(0) + i(1) + i(1)
    yield "extended_no_tag", b"x" + n(b"l", 0) + b"N"
    yield "count_beyond", n(b"l", 2 ** 31 - 1) + b"N"
    yield "count_4g", n(b"t", 2 ** 32 - 1)
    yield "dict_odd", n(b"D", 1) + b"N"
    yield "deep_100", n(b"l", 1) * 100 + b"N"
    yield "deep_101", n(b"l", 1) * 101 + b"N"
    yield "deep_20000", n(b"l", 1) * 20000
    yield "deep_x", (b"x" + s(b"range")) * 200 + b"N"
    yield "left_over", b"NN"
    yield "unknown_tag", b"?"
    yield "empty", b""
    for name, data in (("int", b"i1234"), ("big", b"I\1\4\0\0\0ab"), ("big_sign", b"I"), ("float", b"d123"), ("complex", b"c" + b"1" * 15), ("str", n(b"s", 9) + b"x"), ("count", b"l\1\0"), ("handle", b"h12")):
        yield "cut_" + name, data


def frames():
    def frame(request, operation, payload, length=None):
        return struct.pack("<IQB", len(payload) if length is None else length, request, ord(operation)) + payload

    answer = n(b"t", 3) + i(4) + i(-1) + b"N"
    yield "one", frame(7, "r", answer)
    yield "two", frame(7, "k", answer) + frame(2 ** 64 - 1, "e", b"")
    yield "too_long", frame(1, "r", b"x", 2 ** 26 + 1)
    yield "cut_header", b"\1\0\0\0\7"
    yield "cut_payload", frame(1, "r", b"N", 100)
    yield "4g", b"\xff" * 13


def main():
    target = os.path.join(HERE, "corpus", "fuzz_codec")
    os.makedirs(target, exist_ok=True)
    for first, seeds in ((0, values()), (2, frames())):
        for name, data in seeds:
            with open(os.path.join(target, ("frames_" if first else "") + name), "wb") as f:
                f.write(bytes([first]) + data)
            if name in ("scalars", "big", "containers", "extended_nested", "two"):
                for refused in (0, 1, 2, 3, 5, 8, 13, 21):
                    with open(os.path.join(target, "%s%s_full_%d" % ("frames_" if first else "", name, refused)), "wb") as f:
                        f.write(bytes([first | 1 | refused << 2]) + data)


if __name__ == "__main__":
    main()
