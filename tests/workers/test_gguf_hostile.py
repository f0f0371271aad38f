from __future__ import annotations

import os
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from propolis import dtypes
from propolis.errors import FileFormatError
from propolis.errors import PropolisError
from propolis.errors import UnsupportedModelError
from propolis_workers.weights import GGUFFile


U32, I32, BOOL, STRING, ARRAY, U64 = 4, 5, 7, 8, 9, 10
F32, Q4_0 = 0, 2
HUGE = 2**64 - 1
BAD, NO = FileFormatError, UnsupportedModelError


def string(raw: bytes, claim: int | None = None) -> bytes:
    """A GGUF string; ``claim`` is the length it claims, where that is a lie."""
    return struct.pack("<Q", len(raw) if claim is None else claim) + raw


def u32(value: int) -> bytes:
    """An unsigned 32-bit integer."""
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    """An unsigned 64-bit integer."""
    return struct.pack("<Q", value)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    """A metadata pair."""
    return string(key) + u32(kind) + value


def array(kind: int, count: int, values: bytes = b"") -> bytes:
    """An array; ``count`` is what it claims to hold."""
    return u32(kind) + u64(count) + values


def tensor(name: bytes = b"x", dims=(4,), kind: int = F32, offset: int = 0, ndim=None) -> bytes:
    """A tensor description; ``dims`` in the file's order, ``ndim`` what it claims."""
    sizes = b"".join(map(u64, dims))
    return string(name) + u32(len(dims) if ndim is None else ndim) + sizes + u32(kind) + u64(offset)


def gguf(
    pairs=(), tensors=(), data=b"", *, version=3, n_pairs=None, n_tensors=None, align=32
) -> bytes:
    """A whole file, with claimed counts where they are lies."""
    header = b"GGUF" + u32(version)
    header += u64(len(tensors) if n_tensors is None else n_tensors)
    header += u64(len(pairs) if n_pairs is None else n_pairs)
    header += b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % align) + data


def nested(depth: int) -> bytes:
    """An array of arrays, that many deep."""
    return array(ARRAY, 1) * (depth - 1) + array(U32, 1, u32(7))


def one(**kwargs) -> bytes:
    """A file with one tensor of 64 bytes of data."""
    return gguf([], [tensor(**kwargs)], bytes(64))


def kv(kind: int, value: bytes, key: bytes = b"k") -> bytes:
    """A file with one metadata pair and no tensors."""
    return gguf([pair(key, kind, value)])


def aligned(kind: int, value: bytes) -> bytes:
    """A file with ``general.alignment`` of any type and value."""
    return gguf([pair(b"general.alignment", kind, value)], [tensor()], bytes(64))


SMALL = gguf(
    [
        pair(b"general.architecture", STRING, string(b"llama")),
        pair(b"general.alignment", U32, u32(32)),
        pair(b"flag", BOOL, b"\1"),
        pair(b"tokens", ARRAY, array(STRING, 3, string(b"a") + string(b"") + string(b"bc"))),
        pair(b"scores", ARRAY, array(F32 + 6, 2, struct.pack("<2f", 1, 2))),
        pair(b"nested", ARRAY, nested(2)),
        pair(b"none", ARRAY, array(U32, 0)),
    ],
    [tensor(b"w", (32, 2), Q4_0, 0), tensor(b"b", (3,), F32, 64), tensor(b"s", (), F32, 96)],
    bytes(range(100)) + bytes(28),
)
LAST_BYTE = len(SMALL) - 28

LFS = b"version https://git-lfs/spec/v1\noid sha256:00\nsize 9\n"

# What a file holds, the error, and words that its message must have.
HOSTILE = {
    "empty": (b"", BAD, "is empty (0 bytes); the download is incomplete"),
    "magic, short": (b"GG", BAD, "ends after 2 bytes"),
    "magic, wrong": (b"\1\2\3\4" * 8, BAD, "every GGUF file begins with b'GGUF'"),
    "magic, lower case": (b"gguf" * 8, BAD, "begins with b'gguf'"),
    "magic, ggjt": (b"tjgg" + u32(3) * 8, NO, "from before GGUF"),
    "magic, reversed": (b"FUGG" + u32(3) * 8, NO, "big-endian"),
    "version 0": (gguf(version=0), BAD, "GGUF version 0"),
    "version 1": (gguf(version=1), NO, "GGUF version 1, supported: GGUF 2 and"),
    "version 4": (gguf(version=4), NO, "version 4, supported: GGUF 2 and 3"),
    "big-endian": (gguf(version=3 << 24), NO, "a big-endian GGUF file"),
    "no counts": (b"GGUF" + u32(3), BAD, "the number of tensors at byte 8 takes 8"),
    "tensors, huge": (gguf(n_tensors=HUGE), BAD, f"claims {HUGE} tensors"),
    "tensors, one more": (gguf(n_tensors=1), BAD, "room for 0; the download"),
    "pairs, huge": (gguf(n_pairs=HUGE), BAD, f"claims {HUGE} metadata pairs"),
    "pairs, 2^32": (gguf(n_pairs=2**32, data=bytes(99)), BAD, "has room for"),
    "key, empty": (gguf([pair(b"", U32, u32(1))]), BAD, "0 bytes long, supported: 1"),
    "key, huge": (
        gguf([string(b"k" * 40, HUGE)]),
        BAD,
        f"metadata key 0 at byte 32 is {HUGE} bytes long, supported: 1 to 65535",
    ),
    "key, past the end": (gguf([string(b"k" * 40, 60000)]), BAD, "takes 60000 bytes"),
    "key, not UTF-8": (
        kv(U32, u32(1), b"\xff\n"),
        BAD,
        r"key 0 at byte 32 is not UTF-8: b'\xff\n'",
    ),
    "key, twice": (
        gguf([pair(b"k\n", U32, u32(1)), pair(b"k\n", U32, u32(2))]),
        BAD,
        r"metadata key 'k\n' occurs twice",
    ),
    "metadata type 13": (kv(13, u64(1)), BAD, "metadata type 13"),
    "metadata type 2^32-1": (
        kv(2**32 - 1, u64(1)),
        BAD,
        "the value of 'k' has metadata type 4294967295, known: 0 to 12",
    ),
    "boolean 2": (kv(BOOL, b"\2"), BAD, "is a boolean of value 2"),
    "array of arrays, past the end": (kv(ARRAY, array(ARRAY, 9)), BAD, "claims 9 arrays in the"),
    "string, huge": (
        kv(STRING, string(b"v", HUGE)),
        BAD,
        f"a string in the value of 'k' at byte 45 takes {HUGE} bytes, 19 are left",
    ),
    "pairs, 2^17": (gguf(n_pairs=2**17, data=bytes(2**21)), BAD, "supported: 65536"),
    "string, 2^63": (kv(STRING, u64(2**63)), BAD, "takes 92233720"),
    "array, huge": (
        kv(ARRAY, array(U32, HUGE)),
        BAD,
        f"claims {HUGE} elements, supported: 8388608 in all arrays",
    ),
    "array, past the end": (kv(ARRAY, array(U64, 2**20)), BAD, "takes 8388608 bytes"),
    "array of strings, huge": (
        kv(ARRAY, array(STRING, 2**20)),
        BAD,
        "claims 1048576 strings in the value of 'k'",
    ),
    "array of strings, short": (
        gguf([pair(b"k", ARRAY, array(STRING, 2, string(b"8 bytes.")))], align=1),
        BAD,
        "the length of a string in the value of 'k' at byte",
    ),
    "array of an unknown type": (kv(ARRAY, array(99, 2, bytes(64))), BAD, "metadata type 99"),
    "empty array of an unknown type": (kv(ARRAY, array(99, 0)), BAD, "metadata type 99"),
    "array of arrays, huge": (kv(ARRAY, array(ARRAY, 2**20)), BAD, "claims 1048576 elements"),
    "array, 5 deep": (kv(ARRAY, nested(5)), BAD, "more than 4 deep"),
    "array, 10^5 deep": (kv(ARRAY, nested(10**5)), BAD, "more than 4 deep"),
    "alignment 0": (aligned(U32, u32(0)), BAD, "general.alignment is 0, supported"),
    "alignment 4": (aligned(U32, u32(4)), BAD, "general.alignment is 4"),
    "alignment 48": (aligned(U32, u32(48)), BAD, "powers of 2 from 8 to 2097152"),
    "alignment 2^31": (aligned(U32, u32(2**31)), BAD, "alignment is 2147483648"),
    "alignment 2^63": (aligned(U64, u64(2**63)), BAD, "alignment is 9223372036854775"),
    "alignment -32": (aligned(I32, struct.pack("<i", -32)), BAD, "alignment is -32"),
    "alignment, text": (aligned(STRING, string(b"32")), BAD, "alignment is a str"),
    "alignment, true": (aligned(BOOL, b"\1"), BAD, "alignment is True"),
    "alignment, list": (aligned(ARRAY, array(U32, 0)), BAD, "alignment is a list"),
    "name, empty": (one(name=b""), BAD, "the name of tensor 0 at byte 32 is 0 bytes"),
    "name, long": (one(name=b"n" * 1025), BAD, "1025 bytes long, supported: 1 to 1024"),
    "name, not UTF-8": (one(name=b"\xed\xa0\x80"), BAD, "is not UTF-8"),
    "name, twice": (
        gguf([], [tensor(b"x"), tensor(b"x", offset=32)], bytes(64)),
        BAD,
        "tensor 'x' occurs twice",
    ),
    "5 dimensions": (one(dims=(1,) * 5), BAD, "has 5 dimensions, supported: 0 to 4"),
    "2^32-1 dimensions": (one(ndim=2**32 - 1), BAD, "has 4294967295 dimensions"),
    "zero dimension": (one(dims=(4, 0)), BAD, "[4, 0]: each must be at least 1"),
    "zero after an overflow": (one(dims=(HUGE, 0)), BAD, "their product < 2^63"),
    "overflow to 4": (one(dims=(2**32, 2**32, 1, 4)), BAD, "their product < 2^63"),
    "overflow in bytes": (one(dims=(2**62,)), BAD, "takes bytes 64 to 1844674407370"),
    "row of 31": (
        one(dims=(31, 32), kind=Q4_0),
        BAD,
        "tensor 'x' has rows of 31, q4_0 needs a multiple of 32",
    ),
    "scalar of blocks": (one(dims=(), kind=Q4_0), BAD, "has rows of 1, q4_0"),
    "iq2_xxs": (
        one(kind=16),
        NO,
        "tensor 'x' is of ggml type 16 (iq2_xxs); supported: f64, f32, f16, bf16, i8, i16,",
    ),
    "q4_2": (one(kind=4), NO, "ggml type 4 (removed from ggml)"),
    "unknown type": (one(kind=2**32 - 1), NO, "type 4294967295 (unknown)"),
    "offset, misaligned": (
        one(offset=8),
        BAD,
        "tensor 'x' has offset 8, no multiple of the alignment 32",
    ),
    "offset, past the end": (
        one(offset=64),
        BAD,
        "tensor 'x' takes bytes 128 to 144, the file has 128; the download is incomplete",
    ),
    "offset, huge": (one(offset=2**64 - 32), BAD, "takes bytes 18446744073709551648 to"),
    "offset, one too far": (one(dims=(17,)), BAD, "takes bytes 64 to 132"),
    "overlap": (
        gguf([], [tensor(b"x", (9,)), tensor(b"y", offset=32)], bytes(64)),
        BAD,
        "tensors 'x' and 'y' overlap",
    ),
    "overlap, exact": (gguf([], [tensor(b"x"), tensor(b"y")], bytes(64)), BAD, "'y' overlap"),
    "split": (kv(U32, u32(3), b"split.count"), NO, "part 1 of 3 of a split model, under another"),
    "zip": (b"PK\3\4" + bytes(99), NO, "a Python pickle"),
    "pickle": (b"\x80\2}q\0." + bytes(99), NO, "runs whatever code its author"),
    "pickle, 2 bytes": (b"\x80\4", NO, "convert it to safetensors"),
    "one byte": (b"\x80", BAD, r"begins with b'\x80'"),
    "safetensors": (u64(640) + b"{" * 640, BAD, "a safetensors file; open it as one"),
    "LFS pointer": (LFS, BAD, "a Git LFS pointer, not the weights; run `git lfs pull`"),
    "web page": (b"<!DOCTYPE html><p>" * 9, BAD, "a web page, not the weights"),
}


def opened(path) -> PropolisError | None:
    """Open a file and read all of it; the error, after a check of its form, if it is ours."""
    try:
        with GGUFFile.open(path) as file:
            for info in file.tensors.values():
                assert info.nbytes == file.data(info.name).nbytes
                assert info.nbytes == file.data(info.name)[::-1].nbytes
            return None
    except PropolisError as error:
        found = error
    assert len(str(found).splitlines()) == 1
    assert str(found).startswith(f"{path}: ")
    assert "; " in str(found), "a message says what to do"
    return found


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A path that tests of this module may write to."""
    return tmp_path_factory.mktemp("gguf") / "x.gguf"


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(case, scratch):
    """Each hostile file is refused with the error and words of the table, on one line."""
    raw, error, words = HOSTILE[case]
    scratch.write_bytes(raw)
    found = opened(scratch)
    assert error is type(found)
    assert words in str(found)


def test_small_file_is_sound(scratch):
    """The file that the tests below mutate opens, and reads as it was written."""
    scratch.write_bytes(SMALL)
    with GGUFFile.open(scratch) as file:
        assert file.metadata["tokens"] == ["a", "", "bc"]
        assert file.metadata["nested"] == [[7]]
        assert file.metadata["none"] == []
        assert {n: t.shape for n, t in file.tensors.items()} == {"w": (2, 32), "b": (3,), "s": ()}
        assert bytes(range(64, 76)) == file.data("b").tobytes()
        assert dtypes.q4_0 is file.tensors["w"].dtype


def test_every_truncation(scratch):
    """A file cut anywhere before the last tensor's end is refused, after it opens."""
    for length in range(len(SMALL)):
        scratch.write_bytes(SMALL[:length])
        found = opened(scratch)
        if length < LAST_BYTE:
            assert FileFormatError is type(found), length
        else:
            assert found is None, length


def test_bad_utf8_in_a_value_is_replaced(scratch):
    """Bad UTF-8 in values becomes U+FFFD: the file opens and every value can be printed."""
    tokens = array(STRING, 2, string(b"\xff") + string(b"a\xed\xa0\x80"))
    scratch.write_bytes(gguf([pair(b"t", ARRAY, tokens), pair(b"s", STRING, string(b"\xc3"))]))
    with GGUFFile.open(scratch) as file:
        assert file.metadata["t"] == ["\ufffd", "a\ufffd\ufffd\ufffd"]
        assert file.metadata["s"] == "\ufffd"


def test_empty_array_at_the_end_of_the_file(scratch):
    """A file without tensors may end with an empty array."""
    scratch.write_bytes(gguf([pair(b"k", ARRAY, array(U32, 0))], align=1))
    with GGUFFile.open(scratch) as file:
        assert file.metadata["k"] == []


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (pair(b"k", STRING, u64(2**34)), "where every header must be over"),
        (pair(b"k", ARRAY, array(0, 2**34)), "supported: 8388608 in all arrays"),
        (pair(b"k", ARRAY, array(STRING, 2**34)), "supported: 8388608 in all arrays"),
        (pair(b"k", ARRAY, array(ARRAY, 2**17)), "supported: 8388608 in all arrays"),
    ],
    ids=["string", "bytes", "strings", "arrays"],
)
def test_sparse_file(header, words, tmp_path):
    """A file that has the 32 GiB it claims, but none on disk, allocates none either."""
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf([header], n_tensors=0))
    os.truncate(path, 2**35)
    tracemalloc.start()
    try:
        found = opened(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(found)
    assert peak < 2**20


def test_elements_of_all_arrays_are_limited(scratch, monkeypatch):
    """Many arrays, each within the limit, may not exceed it together."""
    monkeypatch.setattr("propolis_workers.weights.gguf.ELEMENT_LIMIT", 5)
    three = array(0, 3, b"abc")
    scratch.write_bytes(gguf([pair(b"a", ARRAY, three), pair(b"b", ARRAY, three)]))
    assert "the value of 'b' claims 3 elements, supported: 5 in all" in str(opened(scratch))


POSITIONS = st.integers(0, len(SMALL) - 1)
INTEGERS = st.one_of(
    st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, HUGE]),
    st.integers(0, 40),
    st.integers(0, HUGE),
)
MUTATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), POSITIONS, st.integers(1, 255)),
        st.tuples(st.just("cut"), POSITIONS),
        st.tuples(st.just("splice"), POSITIONS, POSITIONS, POSITIONS),
        st.tuples(st.just("u32"), POSITIONS, INTEGERS),
        st.tuples(st.just("u64"), POSITIONS, INTEGERS),
    ),
    min_size=1,
    max_size=6,
)


def mutate(raw: bytes, mutations) -> bytes:
    """Apply byte flips, cuts, splices and replaced integers, one after the other."""
    for kind, at, *rest in mutations:
        if kind == "flip":
            raw = raw[:at] + bytes(b ^ rest[0] for b in raw[at : at + 1]) + raw[at + 1 :]
        elif kind == "cut":
            raw = raw[:at]
        elif kind == "splice":
            raw = raw[:at] + raw[min(rest) : max(rest)] + raw[at:]
        else:
            field = u64(rest[0])[: 4 if kind == "u32" else 8]
            raw = raw[:at] + field + raw[at + len(field) :]
    return raw


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, database=None)
@given(mutations=MUTATIONS)
def test_fuzz(mutations, scratch):
    """A mutated file opens or is refused by an error of ours, within a little memory."""
    raw = mutate(SMALL, mutations)
    scratch.write_bytes(raw)
    tracemalloc.start()
    try:
        opened(scratch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**17 + 64 * len(raw)


@pytest.mark.slow
def test_every_integer_replaced(scratch):
    """With any four or eight bytes replaced by an extreme value, none but our errors occur."""
    for at in range(LAST_BYTE - 8):
        for field in (u32(2**32 - 1), u32(2**31), u64(0), u64(2**63), u64(HUGE)):
            scratch.write_bytes(SMALL[:at] + field + SMALL[at + len(field) :])
            opened(scratch)
