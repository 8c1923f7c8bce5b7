"""Arrays from Python: what is taken, copied, refused; outputs and overlap; binding."""

from __future__ import annotations

import array
import gc
import mmap

import build_programs
import ml_dtypes
import numpy as np
import pytest

import polyq
import polyq.build
from polyq.affine.errors import ArgumentError, ArgumentTypeError

build_programs.install()


@pytest.fixture(scope="module")
def scale():
    return polyq.build(build_programs.scale(), threads=2)


@pytest.fixture(scope="module")
def shift():
    return polyq.build(build_programs.shift())


@pytest.fixture(scope="module")
def accumulate():
    return polyq.build(build_programs.accumulate())


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def misaligned(a, offset):
    memory = np.zeros(a.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    view = np.ndarray(a.shape, a.dtype, memory, start)
    view[...] = a
    return view


VIEWS = {
    "every second column": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
    "transposed": np.arange(12, dtype=np.float32).reshape(4, 3).T,
    "reversed": X[::-1],
    "both reversed": X[::-1, ::-1],
    "fortran": np.asfortranarray(X),
    "broadcast": np.broadcast_to(np.arange(4, dtype=np.float32), (5, 4)),
    "one byte off": misaligned(X, 1),
    "four bytes off": misaligned(X, 4),
    "empty": np.zeros((0, 4), np.float32),
}


@pytest.mark.parametrize("x", VIEWS.values(), ids=VIEWS.keys())
def test_views_of_all_kinds_are_read_right(scale, x):
    before = x.copy()
    np.testing.assert_array_equal(scale(x), 2 * before)
    np.testing.assert_array_equal(scale.bind(x=x)(), 2 * before)
    np.testing.assert_array_equal(x, before)


def test_read_only_inputs_and_memory_maps(scale, tmp_path):
    x = X.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(scale(x), 2 * X)
    X.tofile(tmp_path / "x")
    np.testing.assert_array_equal(scale(np.memmap(tmp_path / "x", np.float32, "r", shape=(3, 4))), 2 * X)
    with (tmp_path / "x").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        given = np.frombuffer(mapped, np.float32).reshape(3, 4)
        np.testing.assert_array_equal(scale(given), 2 * X)
        del given


def test_buffers_and_dlpack_are_arrays_too(shift):
    np.testing.assert_array_equal(shift(array.array("f", [1, 2, 3])), [0, 1, 2])
    np.testing.assert_array_equal(shift(memoryview(np.array([1, 2, 3], np.float32))), [0, 1, 2])

    class Exchanged:
        """Shows its memory through DLPack alone, as arrays of other libraries do."""

        def __init__(self, a):
            self.a = a

        def __dlpack__(self, **options):
            return self.a.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.a.__dlpack_device__()

    np.testing.assert_array_equal(shift(Exchanged(np.array([1, 2, 3], np.float32))), [0, 1, 2])
    out = np.full(3, 7, np.float32)
    assert isinstance(shift(np.array([4, 5, 6], np.float32), out=Exchanged(out)), Exchanged)
    np.testing.assert_array_equal(out, [0, 4, 5])


def test_foreign_byte_order_has_the_right_values(scale):
    np.testing.assert_array_equal(scale(X.astype(">f4")), 2 * X)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (X.astype(np.float64), "float64"),
        (X.astype(np.float16), "float16"),
        (X.astype(ml_dtypes.bfloat16), "bfloat16"),
        (X.astype(np.int64), "int64"),
        (X.astype(np.uint32), "uint32"),
        (X.tolist(), "list"),
        (3.0, "float"),
        (None, "NoneType"),
        ("abcd", "str"),
        (np.ma.masked_array(X, X > 3), "masked"),
        (X.astype(object), "object"),
    ],
    ids=["f64", "f16", "bf16", "i64", "u32", "list", "number", "None", "text", "masked", "object"],
)
def test_a_wrong_dtype_or_no_array_names_argument_expected_and_given(scale, given, named):
    with pytest.raises(ArgumentTypeError) as caught:
        scale(x=given)
    assert str(caught.value).startswith("x: ")
    assert named in str(caught.value)
    assert isinstance(caught.value, (TypeError, ValueError))
    if named not in {"masked"}:
        assert "expected" in str(caught.value)
        assert "f32" in str(caught.value)


def test_a_wrong_shape_names_argument_expected_and_given(scale):
    with pytest.raises(ArgumentError, match=r"^x: expected shape \(3, 4\) \(f32\[m, 4\]\), got \(3, 5\); m = 3 from axis 0 of x$"):
        scale(np.zeros((3, 5), np.float32))
    with pytest.raises(ArgumentError, match=r"^x: expected 2 axes \(f32\[m, 4\]\), got shape \(12,\)$"):
        scale(np.zeros(12, np.float32))


def test_too_many_too_few_unknown_and_repeated_arguments(accumulate):
    y = np.ones(2, np.float32)
    with pytest.raises(ArgumentError, match=r"^3 arguments given by position: expected at most 2 \(y, x\)$"):
        accumulate(y, y, y)
    with pytest.raises(ArgumentError, match=r"^missing input x: "):
        accumulate(y)
    with pytest.raises(ArgumentError, match=r"^z: no input or parameter has that name; expected y, x, n$"):
        accumulate(y, y, z=y)
    with pytest.raises(ArgumentError, match=r"^y: given by position and by name$"):
        accumulate(y, y=y, x=y)
    with pytest.raises(ArgumentError, match=r"parameter 'n': given as 5, but axis 0 of y makes it 2"):
        accumulate(y, y, n=5)
    np.testing.assert_array_equal(accumulate(y, y, n=2), [2, 2])


def test_a_parameter_that_no_shape_determines_is_passed_by_name():
    count = polyq.build(
        build_programs.program(
            "count", [], [("y", "i64", ("n",))],
            "  int64_t *y = buffers[0]; for (int64_t i = 0; i < params[0]; i++) y[i] = i;", params=("n",),
        )
    )  # fmt: skip
    np.testing.assert_array_equal(count(n=4), [0, 1, 2, 3])
    assert count(n=0).shape == (0,)
    with pytest.raises(ArgumentError, match="parameter 'n'"):
        count()
    with pytest.raises(ArgumentError, match="at least 0"):
        count(n=-1)
    with pytest.raises(ArgumentTypeError, match="integer"):
        count(n=1.5)


def test_a_scalar_input_and_output():
    square = polyq.build(
        build_programs.program(
            "square", [("x", "f64", ())], [("y", "f64", ())], "  const double *x = buffers[0]; *(double *)buffers[1] = *x * *x;"
        )
    )
    result = square(np.array(3.0))
    assert (result.shape, result[()]) == ((), 9.0)
    assert square(np.float64(4))[()] == 16.0


# ---- outputs
def test_out_is_written_and_returned(scale):
    out = np.full((3, 4), 7, np.float32)
    assert scale(X, out=out) is out
    np.testing.assert_array_equal(out, 2 * X)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: np.zeros((3, 8), np.float32)[:, ::2], lambda a: misaligned(a, 1)])
def test_out_of_any_layout_is_right(scale, make):
    out = make(np.full((3, 4), 7, np.float32))
    assert scale(X, out=out) is out
    np.testing.assert_array_equal(out, 2 * X)


def test_an_out_that_does_not_fit_is_refused(scale):
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"^out: the array for y is read-only; give one that can be written$"):
        scale(X, out=frozen)
    with pytest.raises(ArgumentError, match=r"^out: y expects shape \(3, 4\), got \(4, 3\)$"):
        scale(X, out=np.zeros((4, 3), np.float32))
    with pytest.raises(ArgumentTypeError, match=r"^out: y expects dtype float32 \(f32\), got float64$"):
        scale(X, out=np.zeros((3, 4)))
    with pytest.raises(ArgumentTypeError, match=r"^out: y expects a writable array on the CPU, got str"):
        scale(X, out="y")
    with pytest.raises(ArgumentError, match="broadcast view"):
        scale(X, out=np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 4), (0, 4)))
    with pytest.raises(ArgumentError, match=r"^out: expected one array \(y\), got a tuple of 2 arrays$"):
        scale(X, out=(X, X))
    np.testing.assert_array_equal(X, np.arange(12).reshape(3, 4))


def test_an_out_that_overlaps_an_input_is_right(shift):
    memory = np.arange(1, 9, dtype=np.float32)
    for start in (0, 1, 2):  # the same array, then shifted by one and two elements
        a = memory.copy()
        x, out = a[:6], a[start : start + 6]
        expected = np.concatenate(([0], x[:-1]))
        shift(x, out=out)
        np.testing.assert_array_equal(out, expected)
    a = memory.copy()
    shift(a, out=a)
    np.testing.assert_array_equal(a, [0, 1, 2, 3, 4, 5, 6, 7])
    a = memory.copy()
    shift(a[::-1], out=a)
    np.testing.assert_array_equal(a, [0, 8, 7, 6, 5, 4, 3, 2])


def test_an_updated_tensor_leaves_the_callers_array_unless_it_is_out(accumulate):
    y, x = np.array([5, 6], np.float32), np.array([1, 2], np.float32)
    np.testing.assert_array_equal(accumulate(y=y, x=x), [6, 8])
    np.testing.assert_array_equal(y, [5, 6])
    other = np.full(2, 9, np.float32)
    accumulate(y=y, x=x, out=other)
    np.testing.assert_array_equal(other, [6, 8])
    np.testing.assert_array_equal(y, [5, 6])
    assert accumulate(y=y, x=x, out=y) is y
    np.testing.assert_array_equal(y, [6, 8])
    accumulate(y=y, x=y, out=y)
    np.testing.assert_array_equal(y, [12, 16])
    held = np.arange(4, dtype=np.float32)
    accumulate(y=held[:3], x=np.ones(3, np.float32), out=held[1:])
    np.testing.assert_array_equal(held, [0, 1, 2, 3])
    held = np.arange(4, dtype=np.float32)
    accumulate(y=held[:2], x=held[1:3], out=held[2:])  # out overlaps x alone
    np.testing.assert_array_equal(held, [0, 1, 1, 3])


def test_several_outputs_are_a_named_tuple():
    halves = polyq.build(build_programs.halves())
    low, high = halves(np.arange(3.0))
    np.testing.assert_array_equal(low, [0, 1, 2])
    assert halves(np.arange(3.0)).high.tolist() == [10, 11, 12]
    out = (np.zeros(3), np.zeros(3))
    given = halves(np.arange(3.0), out=out)
    assert (given.low is out[0], given.high is out[1]) == (True, True)
    np.testing.assert_array_equal(high, out[1])
    memory = np.zeros(4)
    with pytest.raises(ArgumentError, match=r"^out: the arrays for low and high overlap"):
        halves(np.arange(3.0), out=(memory[:3], memory[1:]))
    with pytest.raises(ArgumentError, match=r"^out: expected a tuple of 2 arrays \(low, high\), got one array$"):
        halves(np.arange(3.0), out=memory[:3])
    x = np.arange(3.0)
    halves(x, out=(np.zeros(3), x))
    np.testing.assert_array_equal(x, [10, 11, 12])


def test_temporaries_of_the_caller_live_long_enough(scale):
    gc.set_threshold(1)
    try:
        for i in range(200):
            np.testing.assert_array_equal(scale((np.full((2, 4), i, np.int64)).astype("f4")), np.full((2, 4), 2 * i))
    finally:
        gc.set_threshold(700)


# ---- narrow types
def nibbles():
    """``y[i] = w[i] + 1`` over 4-bit codes, low bits first."""
    return build_programs.program(
        "nibbles", [("w", "u4", (3, 5))], [("y", "i32", (3, 5))],
        "  const uint8_t *w = buffers[0]; int32_t *y = buffers[1];\n"
        "  for (int i = 0; i < 3; i++) for (int j = 0; j < 5; j++) y[5 * i + j] = (w[3 * i + j / 2] >> j % 2 * 4 & 15) + 1;",
    )  # fmt: skip


def test_packed_codes_come_as_bytes_or_as_ml_dtypes():
    kernel = polyq.build(nibbles())
    codes = np.arange(15).reshape(3, 5)
    packed = np.array([[0x10, 0x32, 0x04], [0x65, 0x87, 0x09], [0xBA, 0xDC, 0x0E]], np.uint8)
    np.testing.assert_array_equal(kernel(packed), codes + 1)
    np.testing.assert_array_equal(kernel(codes.astype(ml_dtypes.uint4)), codes + 1)
    bound = kernel.bind(w=codes.astype(ml_dtypes.uint4))
    np.testing.assert_array_equal(bound(), codes + 1)
    assert bound.nbytes == 9
    for wrong in (np.zeros((3, 5), np.uint8), np.zeros((3, 2), np.uint8)):
        with pytest.raises(ArgumentError, match=r"^w: expected shape \(3, 3\)"):
            kernel(wrong)
    with pytest.raises(ArgumentError, match="w: expected shape"):
        kernel(np.zeros((3, 6), ml_dtypes.uint4))
    with pytest.raises(ArgumentTypeError, match="w: expected u4"):
        kernel(np.zeros((3, 5), ml_dtypes.int4))


def test_bf16_comes_as_ml_dtypes_or_bits():
    double = polyq.build(
        build_programs.program(
            "double", [("x", "bf16", ("n",))], [("y", "bf16", ("n",))],
            "  const uint16_t *x = buffers[0]; uint16_t *y = buffers[1];\n"
            "  for (int64_t i = 0; i < params[0]; i++) y[i] = x[i] + 0x80;", params=("n",),  # the exponent plus one
        )
    )  # fmt: skip
    x = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    result = double(x)
    assert result.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(result.astype(np.float32), [2, 5, -6])
    np.testing.assert_array_equal(double(x.view(np.uint16)).astype(np.float32), [2, 5, -6])
    np.testing.assert_array_equal(double(x[::-1]).astype(np.float32), [-6, 5, 2])
    out = np.zeros(3, ml_dtypes.bfloat16)
    assert double(x, out=out) is out
    np.testing.assert_array_equal(out.astype(np.float32), [2, 5, -6])
    with pytest.raises(ArgumentTypeError, match="x: expected bf16"):
        double(x.astype(np.float32))


# ---- binding
def test_bind_takes_a_snapshot_on_a_cache_line(accumulate):
    x = np.ones(3, np.float32)
    bound = accumulate.bind(x=x)
    x[:] = 100
    y = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(bound(y), [2, 3, 4])
    np.testing.assert_array_equal(bound(y=y), [2, 3, 4])
    assert bound(y, out=y) is y
    np.testing.assert_array_equal(y, [2, 3, 4])
    assert bound.nbytes == 12
    assert [t.name for t in bound.inputs] == ["y"]
    assert all(a.ctypes.data % 64 == 0 for a in bound._held.values())


def test_bind_checks_at_once(accumulate):
    y = np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match=r"^bind: z: no input has that name; the inputs are y, x$"):
        accumulate.bind(z=y)
    with pytest.raises(ArgumentTypeError, match=r"^x: expected dtype float32 \(f32\), got dtype int64"):
        accumulate.bind(x=y.astype(np.int64))
    with pytest.raises(ArgumentError, match=r"^x: expected shape \(3,\)"):
        accumulate.bind(y=y, x=np.ones(4, np.float32))
    with pytest.raises(ArgumentError, match=r"^x: expected 1 axes"):
        accumulate.bind(x=np.ones((3, 3), np.float32))
    bound = accumulate.bind(x=y)
    with pytest.raises(ArgumentError, match=r"^x: bound already; bind anew for other values$"):
        bound(y, x=y)
    with pytest.raises(ArgumentError, match=r"^2 arguments given by position: expected at most 1 \(y\); bound are x$"):
        bound(y, y)
    with pytest.raises(ArgumentError, match=r"^missing input y"):
        bound()
    with pytest.raises(ArgumentError, match=r"^y: given by position and by name$"):
        bound(y, y=y)
    with pytest.raises(ArgumentError, match=r"x: expected shape \(2,\)"):
        bound(np.ones(2, np.float32))


def test_constants_are_given_by_bind_alone():
    kernel = polyq.build(build_programs.accumulate(), constants=("x",))
    y = np.ones(2, np.float32)
    with pytest.raises(ArgumentError, match=r"^x: constants of this kernel, got x in a call; use kernel.bind\(x=x\)$"):
        kernel(y, y)
    with pytest.raises(ArgumentError, match="none was bound"):
        kernel(y)
    with pytest.raises(ArgumentError, match=r"^bind: x: declared in constants="):
        kernel.bind(y=y)
    np.testing.assert_array_equal(kernel.bind(x=y)(y), [2, 2])
    with pytest.raises(ArgumentError, match=r"^constants: w: no input has that name; the inputs are y, x$"):
        polyq.build(build_programs.accumulate(), constants=("w",))
    with pytest.raises(ArgumentError, match=r"^constants='x': expected a tuple of names"):
        polyq.build(build_programs.accumulate(), constants="x")


def test_out_of_memory_is_a_memory_error():
    greedy = polyq.build(
        build_programs.program(
            "greedy", [], [("y", "f32", (1,))], "  if (!runtime->workspace((size_t)1 << 62)) return 1;\n  *(float *)buffers[0] = 1;"
        )
    )
    with pytest.raises(MemoryError, match="kernel greedy: out of memory while it ran"):
        greedy()
