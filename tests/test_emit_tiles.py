"""Tiles in registers, masked fields, stores past the cache, threads, and what compilers say and make of the C."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from emitting import (
    Case,
    Runtime,
    call,
    check,
    compile_all,
    compilers,
    directive,
    guarded,
    in_child,
    inputs_of,
    modules,
    runnable,
    step,
    vector,
)

import polyq
from polyq.affine import dtypes
from polyq.affine.scalar import Apply, Cast, Const, Index, Load, map_scalar
from polyq.emit.unit import c_module
from polyq.schedule.lower import lower
from polyq.schedule.target import Target

SHAPES = tuple((t, n) for t, n in (("c", 8), ("sse", 4), ("avx2", 8), ("avx2", 16)) if runnable(t))


def tile(rows: int, blocks: int):
    """A register tile of ``rows`` times ``blocks`` vectors for ``y[i, j] += a[i, k] * b[k, j]``."""

    def made(lanes):
        out = [
            directive("accumulate", tensor="y", local="acc"),
            directive("split", op="y", axis="i", factor=rows, outer="io", inner="ii"),
            directive("split", op="y", axis="j", factor=lanes, outer="jb", inner="jv"),
            directive("split", op="y", axis="jb", factor=blocks, outer="jo", inner="jt"),
            directive("reorder", op="y", axes=("io", "jo", "ii", "jt", "jv")),
        ]
        out += [directive("mark", op="y", axis=a, kind=k) for a, k in (("ii", "unroll"), ("jt", "unroll"), ("jv", "vector"))]
        for op in ("acc.init", "acc"):
            out += [
                directive("fuse", producer=op, into="y", at="jo"),
                directive("split", op=op, axis="j", factor=lanes, outer="jt", inner="jv"),
                directive("reorder", op=op, axes=(*(("k",) if op == "acc" else ()), "i", "jt", "jv")),
            ]
            out += [directive("mark", op=op, axis=a, kind=k) for a, k in (("i", "unroll"), ("jt", "unroll"), ("jv", "vector"))]
        return out

    return made


MATMUL = "y[i, j] += a[i, k] * b[k, j]"


def dot(lanes):
    """Four rows of ``y[n] += x[k] * f32(w[n, k])``: fields of 32-bit lanes, sums over lanes at the end."""
    return [
        directive("split_dim", op="y", dim="k", factor=4 * lanes, outer="v", inner="r"),
        directive("split_dim", op="y", dim="r", factor=4, outer="l", inner="i"),
        directive("partial_sums", op="y", keep=("l",), tensor="part"),
        directive("accumulate", tensor="y", local="acc"),
        directive("split", op="y", axis="n", factor=4, outer="no", inner="ni"),
        directive("mark", op="y", axis="ni", kind="unroll"),
        *(directive("fuse", producer=op, into="y", at="no") for op in ("acc.init", "part.init", "part", "acc")),
        directive("reorder", op="part", axes=("v", "i", "n", "l")),
        *(directive("mark", op=op, axis="n", kind="unroll") for op in ("acc.init", "part.init", "part", "acc")),
        *(directive("mark", op=op, axis="l", kind="vector") for op in ("part.init", "part", "acc")),
        directive("mark", op="part", axis="i", kind="unroll"),
    ]


DOT = Case("dot of codes", "y[n] += x[k] * f32(w[n, k])", {"x": ("f32", (256,)), "w": ("u8", (10, 256))}, (dot,), prefetch={"w": 512})


def in_place(spec):
    """Scale each field by the power of its place."""

    op = spec.op("y")
    load = next(node for node in op.reads if node.tensor == "w")
    return replace_body(spec, "y", Apply("ldexp", (Cast(load, "f32"), Index(_place(load), "i64")), "f32"))


def _place(load):
    bits = dtypes.info(load.dtype).bits
    return (load.index[-1] % (32 // bits)) * bits


def replace_body(spec, name, body):
    return spec.with_ops(tuple(replace(op, body=body) if op.name == name else op for op in spec.ops))


def field_case(dtype: str, fields: int) -> Case:
    text = f"y[n, i, l] = f32(w[n, l*{fields} + i]) where n < 3, i < {fields}, l < 16"
    return Case(
        f"fields of {dtype} in place", text, {"w": (dtype, (3, 16 * fields)), "y": ("f32", (3, fields, 16))},
        (vector("y", "l"), step("mark", op="y", axis="i", kind="unroll")), change=in_place,
    )  # fmt: skip


def test_register_tiles(tmp_path):
    cases = [
        Case("tile", MATMUL, {"a": ("f32", (13, 9)), "b": ("f32", (9, 37))}, (tile(6, 2),)),
        Case("tile of any size", MATMUL, {"a": ("f32", ("m", "k")), "b": ("f32", ("k", "n"))}, (tile(4, 2),), {"m": 7, "k": 5, "n": 53}),
        Case("tile of doubles", MATMUL, {"a": ("f64", (5, 9)), "b": ("f64", (9, 32))}, (tile(2, 1),)),
        Case("tile of bytes", MATMUL, {"a": ("i8", (5, 9)), "b": ("i8", (9, 35))}, (tile(2, 2),)),
        DOT,
        Case("dot of nibbles", DOT.text, {"x": ("f32", (256,)), "w": ("i4", (10, 256))}, (step("split", op="y", axis="n", factor=2), vector("y", "k"))),
        Case("a tile in memory", "t[i, j] = x[i, j] * 2.0\ny[i, j] = t[i, j] + t[i, j + 1] where j < 100", {"x": ("f32", (9, 101))},
             (step("split", op="y", axis="i", factor=2, outer="io", inner="ii"), step("fuse", producer="t", into="y", at="io"), vector("t", "j"), vector("y", "j"))),
        Case("a large tile in memory", "t[i, j] = x[i, j] * 2.0\ny[i, j] = t[i, j] + t[i, j + 1] where j < 2000", {"x": ("f32", (9, 2001))},
             (step("split", op="y", axis="i", factor=3, outer="io", inner="ii"), step("fuse", producer="t", into="y", at="io"), vector("t", "j"), vector("y", "j"),
              step("mark", op="y", axis="io", kind="parallel"))),
    ]  # fmt: skip
    assert check(cases, tmp_path, SHAPES, "reassoc") == len(cases) * len(SHAPES)


# ---- fields masked in place
def test_fields_in_place(tmp_path):
    cases = [field_case(d, f) for d, f in (("u8", 4), ("i8", 4), ("u4", 8), ("i4", 8), ("u2", 16), ("i2", 16), ("u16", 2), ("i16", 2))]
    check(cases, tmp_path, SHAPES, "strict")


def test_a_field_in_place_is_one_mask():
    source = modules([field_case("u8", 4)], [("avx2", 8)], "strict")[0].module.source
    assert re.findall(r"w_words & (field_\w+)\), f32x8", source)[:2] == ["field_8_at_8_x8", "field_8_at_16_x8"]
    assert "static const u32x8 field_8_at_16_x8 = {0xff0000, " in source
    # the top field would become negative: it is shifted, and the power is a factor
    assert "i32x8 w_v = (i32x8)(w_words >> 24);" in source
    assert "__builtin_convertvector(w_v, f32x8) * splat_f32x8(0x1p24f)" in source


def test_powers_of_two(tmp_path):
    def scaled(spec):
        y, z = spec.op("y"), spec.op("z")
        spec = replace_body(spec, "y", Apply("ldexp", (y.body, Const(-3, "i32")), "f32"))
        return replace_body(spec, "z", Apply("ldexp", (z.body, Index(z.index[0] * 9 - 180, "i64")), "f32"))

    text = "y[i] = x[i]\nz[i, j] = x[j]\nu[i] = x[i] where i < 37"
    case = Case("powers", text, {"x": ("f32", (37,)), "z": ("f32", (40, 37))}, (vector("y", "i"), vector("z", "j")), change=scaled)
    check([case], tmp_path, SHAPES, "strict")


# ---- stores past the cache
STREAM = Case("streamed", "y[i, j] = x[i, j] + 1.0", {"x": ("f32", ("m", "n"))}, (vector("y", "j"),), {"m": 5, "n": 48}, stream=frozenset({"y"}))


@pytest.mark.parametrize("columns", [48, 49, 50])
def test_streamed_rows(columns, tmp_path):
    case = replace(STREAM, params={"m": 5, "n": columns})
    built = modules([case], [s for s in SHAPES if s[0] != "c"], "strict")
    libraries = compile_all(built, tmp_path)
    x = inputs_of(case)["x"]

    def run():
        for i, b in enumerate(built):
            for shift in (0, 4, 8, 16):  # an output that begins between two lines
                out = guarded(np.zeros(5 * columns * 4 + 64, np.uint8), True, 64)
                y = out[shift : shift + 5 * columns * 4].view(np.float32).reshape(5, columns)
                pointers = (ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data)
                sizes = {"m": 5, "n": columns}
                values = (ctypes.c_int64 * 2)(*[sizes[p] for p in b.module.params])
                kernel = getattr(ctypes.CDLL(str(libraries[i])), b.module.entry)
                assert kernel(Runtime(True).table, pointers, values, 1) == 0
                assert np.array_equal(y, x + 1), (b.label, shift)
                assert not out[:shift].any(), (b.label, shift)
                assert not out[shift + 5 * columns * 4 :].any(), (b.label, shift)

    in_child(run)


def test_stores_past_the_cache_are_fenced():
    threaded = replace(STREAM, steps=(*STREAM.steps, step("mark", op="y", axis="i", kind="parallel")))
    for case, function in ((STREAM, "int kernel_k0("), (threaded, "static void run_region_0(")):
        source = modules([case], [("avx2", 8)], "strict")[0].module.source
        body = source[source.index(function) :].split("\n}\n")[0]
        assert body.index("stream_f32x8(y") < body.index("STREAM_FENCE();")
        assert "y_aligned = (uintptr_t)y % 16 == 0 && y_stride0 * 4 % 16 == 0;" in source


# ---- prefetch
def test_one_prefetch_a_line():
    case = Case("two loads a line", "y[i] = x[2*i] + x[2*i + 1] where i < 64", {"x": ("f32", (128,))}, prefetch={"x": 256})
    source = modules([case], [("avx2", 8)], "strict")[0].module.source
    assert source.count("__builtin_prefetch") == 1  # single elements ask when they come to a new line
    body = modules([DOT], [("avx2", 8)], "strict")[0].module.source
    asked = re.findall(r"__builtin_prefetch\(\(const char \*\)\((.*)\) \+ 512\);", body)
    assert len(asked) == len(set(asked)) == 4 + 3  # the rows of a tile, and of the lower ones


# ---- threads and packed elements
def test_threads_that_share_a_byte():
    case = Case("packed", "y[i] = u4(x[i])", {"x": ("u8", (64,))}, (step("mark", op="y", axis="i", kind="parallel"),))
    with pytest.raises(polyq.ScheduleError) as caught:
        modules([case], [("c", 1)], "strict")
    assert str(caught.value) == (
        "y: axis 'i' cannot be parallel: y[i] packs 2 elements of u4 in a byte, and threads would write to one byte; make "
        "another axis parallel, or split this one by a multiple of 2 and make the outer part parallel"
    )


@pytest.mark.parametrize(("factor", "fine"), [(1, False), (2, True), (3, False), (8, True)])
def test_threads_with_bytes_of_their_own(factor, fine, tmp_path):
    steps = (step("split", op="y", axis="i", factor=factor, outer="io", inner="ii"), step("mark", op="y", axis="io", kind="parallel"))
    case = Case("packed", "y[i] = u4(x[i])", {"x": ("u8", (77,))}, steps)
    if fine:
        check([case], tmp_path, [("c", 1)], "strict")
    else:
        with pytest.raises(polyq.ScheduleError, match="threads would write to one byte"):
            modules([case], [("c", 1)], "strict")


# ---- names
def test_hostile_names(tmp_path):
    names = ("int", "for", "printf", "exp_f32", "f32x8", "splat_f32x8", "shared", "given", "count", "i", "buffers", "KEEP", "y0", "stem_2", "u8")
    tensors = {f"{n}_": ("f32", (21,)) for n in names}
    spec = polyq.parse("\n".join(f"o{i}[i] = exp({n}_[i]) + {n}_[i]" for i, n in enumerate(names)), **tensors)
    renamed = {f"{n}_": n for n in names}

    def change(_):
        def leaf(node):
            return replace(node, tensor=renamed.get(node.tensor, node.tensor)) if isinstance(node, Load) else node

        ops = tuple(replace(op, body=map_scalar(op.body, leaf)) for op in spec.ops)
        all_tensors = tuple(replace(t, name=renamed.get(t.name, t.name)) for t in spec.all_tensors)
        return replace(spec, all_tensors=all_tensors, ops=ops, input_names=names)

    case = Case("names", "y[i] = x[i]", {"x": ("f32", (2,))}, tuple(vector(f"o{i}", "i") for i in range(len(names))), change=change)
    built = modules([case], [("avx2", 8)], "strict")
    libraries = compile_all(built, tmp_path)
    given = {n: np.full(21, i, np.float32) for i, n in enumerate(names)}
    outputs = in_child(lambda: call(ctypes.CDLL(str(libraries[0])), built[0], given, 1, True))
    assert all(np.allclose(outputs[f"o{i}"], np.exp(np.float32(i)) + i, rtol=1e-6) for i in range(len(names)))


def test_variables_of_several_tiles_have_names_of_their_own():
    case = Case("tile", MATMUL, {"a": ("f32", (13, 9)), "b": ("f32", (9, 37))}, (tile(6, 1),))
    source = modules([case], [("avx2", 8)], "strict")[0].module.source
    blocks = [{}]
    for token in re.findall(r"[{}](?!;|,|\d)|f32x8 \w+ = \{0\}(?:, \w+ = \{0\})*;", source[source.index("int kernel_") :]):
        if token == "{":
            blocks.append({})
        elif token == "}":
            blocks.pop()
        else:
            for name in re.findall(r"(\w+) = ", token):
                assert not any(name in block for block in blocks), name  # neither twice nor shadowing
                blocks[-1][name] = True


def test_loops_are_named_after_dims():
    case = Case("names", "y[m, n] = x[m, n] + 1.0\nz[m, n] = x[m, n] * y[m, n]", {"x": ("f32", ("rows", 8))})
    source = modules([case], [("c", 1)], "strict")[0].module.source
    heads = re.findall(r"for \((.*)\)", source[source.index("*/") :])
    assert heads == ["int64_t m = 0; m < rows; ++m", "int64_t n = 0; n < 8; ++n"] * 2
    assert "z[8 * m + n] = x[8 * m + n] * y[8 * m + n];" in source


# ---- compilers
@pytest.mark.parametrize("compiler", compilers())
@pytest.mark.parametrize("target", ["c", "sse", "avx2", "avx512"])
def test_no_warnings(compiler, target, tmp_path):
    from test_emit import ACCESSES, BOOLS, CASTS, FOLDS, MATH, PACKED, _elementwise

    cases = [
        *ACCESSES[:8:2], *ACCESSES[-4:], BOOLS[1], CASTS[0], CASTS[3], FOLDS[0], FOLDS[2], MATH[1], MATH[6], PACKED[0], PACKED[5],
        _elementwise("f16"), _elementwise("i64"), DOT, STREAM, field_case("u4", 8),
        Case("tile", MATMUL, {"a": ("f32", (13, 9)), "b": ("f32", (9, 37))}, (tile(6, 2),)),
    ]  # fmt: skip
    built = modules(cases, [(target, 16 if target == "avx512" else 8)], "reassoc")
    if target == "avx512":  # for the compiler alone
        assert all("-mavx512f" in b.module.flags for b in built)
    compile_all(built, tmp_path, options=("-O1",), compiler=compiler)  # with -Wall -Wextra -Werror


# ---- machine code
def _assembly(case: Case, tmp_path, target: str = "avx2", lanes: int = 8) -> str:
    built = modules([case], [(target, lanes)], "reassoc")
    library = compile_all(built, tmp_path, options=("-O3",))[0]
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", "-M", "intel", str(library)], capture_output=True, text=True, check=True).stdout
    return text[text.index(f"<{built[0].module.entry}>:") :].split("\n\n")[0]


def _innermost(assembly: str, marker: str) -> list[str]:
    """Return the instructions of the shortest loop that contains ``marker``."""
    lines = [line.split("\t") for line in assembly.splitlines()[1:]]
    code = [(int(parts[0].strip().rstrip(":"), 16), parts[1].strip()) for parts in lines if len(parts) > 1]
    loops: list[list[str]] = []
    for i, (address, text) in enumerate(code):
        jump = re.match(r"j\w+\s+([0-9a-f]+)", text)
        if jump and int(jump[1], 16) <= address:
            body = [t for a, t in code[: i + 1] if a >= int(jump[1], 16)]
            if any(marker in t for t in body):
                loops.append(body)
    assert loops, f"no loop with {marker}:\n{assembly}"
    return min(loops, key=len)


needs_objdump = pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump of binutils reads the machine code")


@needs_objdump
def test_a_register_tile_does_not_spill(tmp_path):
    case = Case("tile", MATMUL, {"a": ("f32", (12, 64)), "b": ("f32", (64, 32))}, (tile(6, 2),))
    loop = _innermost(_assembly(case, tmp_path), "vfmadd")
    products = [t for t in loop if t.startswith("vfmadd")]
    assert len(products) % 12 == 0
    assert len(products) >= 12
    assert not [t for t in loop if "rsp" in t or "rbp" in t], loop  # nothing goes to the stack
    assert not [t for t in products if "[" in t], loop  # what several products share is loaded once


@needs_objdump
def test_codes_are_converted_in_registers(tmp_path):
    loop = _innermost(_assembly(DOT, tmp_path), "vcvtdq2ps")
    assert sum(t.startswith("vcvtdq2ps") for t in loop) % 4 == 0
    assert sum(t.startswith("vfmadd") for t in loop) == sum(t.startswith("vcvtdq2ps") for t in loop)
    assert not [t for t in loop if re.match(r"v?(i?div|pinsr|pextr)", t) or "call" in t or "rsp" in t], loop


def test_threads_inside_threads_are_refused():
    """A parallel loop becomes a region; one inside another is refused, with both named."""
    rows, columns = (step("mark", op="y", axis=axis, kind="parallel") for axis in "ij")
    shapes = {"x": ("f32", (8, 8))}
    nest = lower(Case("rows", "y[i, j] = x[i, j] * 2.0", shapes, (rows,)).plan(8))
    assert c_module(nest, Target.named("c"), "strict").source.count("static void run_region_") == 1
    with pytest.raises(polyq.ScheduleError) as caught:
        lower(Case("cells", "y[i, j] = x[i, j] * 2.0", shapes, (rows, columns)).plan(8))
    assert str(caught.value) == (
        "y: the axis 'j' is parallel inside the axis 'i' of y, which is parallel already; make one of the two serial"
    )
