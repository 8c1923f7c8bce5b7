"""Inputs that are bound may be packed: the same values as unbound, no copy kept besides, and one stretch a tile."""

import pickle
import threading
import warnings

import numpy as np
import pytest

import polyq
from polyq.affine.expr import Affine
from polyq.build import building, compiler
from polyq.schedule import Schedule
from polyq.schedule.loopnest import Loop
from polyq.schedule.prologue import prepared_part, prologue_problem, repeated_part

BODY = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def spec_of(dtype, n, g, j, body=BODY):
    return polyq.parse(
        body, w=(dtype, (n, g, j)), z=("f32", (n, g)), s=("f32", (n, g)), x=("f32", ("m", g, j)),
    )  # fmt: skip


def data(dtype, n, g, j, m, seed=0):
    """Return codes, the codes as they are stored, zero points, scales and activations."""
    r = np.random.default_rng(seed)
    bits = int(dtype[1:])
    low = 0 if dtype[0] == "u" else -(1 << bits - 1)
    w = r.integers(low, low + (1 << bits), (n, g, j)).astype(np.int8 if low else np.uint8)
    stored = w
    if bits < 8:
        fields = w.view(np.uint8) & ((1 << bits) - 1)
        step = 8 // bits
        fields = np.pad(fields, ((0, 0), (0, 0), (0, -j % step)))
        stored = sum(fields[..., i::step] << (bits * i) for i in range(step)).astype(np.uint8)
    z, s = (r.random((n, g), dtype=np.float32) * (1 << bits), r.random((n, g), dtype=np.float32))
    return w, stored, z, s, r.standard_normal((m, g, j), dtype=np.float32)


@pytest.mark.parametrize("dtype", ["u8", "i8", "u4", "i4", "u2", "i2"])
@pytest.mark.parametrize(("n", "g", "j"), [(64, 4, 128), (96, 3, 32), (100, 2, 48), (33, 3, 20), (520, 2, 64)])
@pytest.mark.parametrize("m", [1, 5])
def test_bound_and_unbound_agree_with_numpy(dtype, n, g, j, m):
    w, stored, z, s, x = data(dtype, n, g, j, m)
    kernel = polyq.build(spec_of(dtype, n, g, j), threads=2)
    wanted = np.einsum("mgj,ngj->mn", x.astype(float), (w.astype(float) - z[..., None]) * s[..., None])
    scale = np.einsum("mgj,ngj->mn", abs(x).astype(float), (abs(w.astype(float)) + z[..., None]) * s[..., None])
    layer = kernel.bind(w=stored, z=z, s=s)
    for got in (kernel(w=stored, z=z, s=s, x=x), layer(x=x), layer(x)):
        assert np.max(np.abs(got - wanted) / scale) < 1e-5
    assert layer.nbytes <= 1.1 * (stored.nbytes + z.nbytes + s.nbytes)


def test_what_is_bound_is_packed_and_the_original_is_not_kept():
    w, stored, z, s, x = data("u8", 256, 8, 128, 3)
    kernel = polyq.build(spec_of("u8", 256, 8, 128))
    layer = kernel.bind(w=stored, z=z, s=s)
    assert layer.kernel is not kernel
    assert layer.kernel.constants == ("w", "z", "s")
    assert layer.kernel.certificate.ok
    assert layer.nbytes == w.nbytes + z.nbytes + s.nbytes
    assert [t.name for t in layer.inputs] == ["x"]
    assert "w, z, s, packed as " in repr(layer)
    before = layer(x=x)
    stored[:], z[:], s[:] = 0, 0, 0  # a snapshot: the caller's arrays are no part of it
    np.testing.assert_array_equal(layer(x=x), before)
    again = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(again(x=x), before)
    out = np.empty_like(before)
    assert layer(x=x, out=out) is out
    np.testing.assert_array_equal(out, before)


def test_constants_at_build_pack_the_same():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    spec = spec_of("u8", 256, 8, 128)
    declared = polyq.build(spec, constants=("w", "z", "s"))
    with pytest.raises(polyq.ArgumentError, match=r"kernel\.bind\(w=w, z=z, s=s\)"):
        declared(w=stored, z=z, s=s, x=x)
    one, other = declared.bind(w=stored, z=z, s=s), polyq.build(spec).bind(w=stored, z=z, s=s)
    assert one.kernel is declared
    np.testing.assert_array_equal(one(x=x), other(x=x))


def test_what_is_bound_alone_is_refused_in_a_call():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    layer = polyq.build(spec_of("u8", 256, 8, 128)).bind(w=stored, z=z, s=s)
    with pytest.raises(polyq.ArgumentError, match="w: bound already"):
        layer(x=x, w=stored)
    with pytest.raises(polyq.ArgumentError, match="expected at most 1"):
        layer(x, x)
    with pytest.raises(polyq.ArgumentError):
        layer()


def test_wrong_constants_are_refused_before_anything_is_packed():
    _, stored, z, s, _ = data("u8", 256, 8, 128, 2)
    kernel = polyq.build(spec_of("u8", 256, 8, 128))
    with pytest.raises(polyq.ArgumentTypeError):
        kernel.bind(w=stored.astype(np.float32), z=z, s=s)
    with pytest.raises(polyq.ArgumentError):
        kernel.bind(w=stored[:-1], z=z, s=s)
    with pytest.raises(polyq.ArgumentError):
        kernel.bind(w=stored[..., :-1], z=z, s=s)


def test_strided_and_read_only_constants_are_packed_right():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    kernel = polyq.build(spec_of("u8", 256, 8, 128))
    wanted = kernel.bind(w=stored, z=z, s=s)(x=x)
    wide = np.zeros((256, 8, 256), np.uint8)
    wide[..., ::2] = stored
    z.flags.writeable = False
    np.testing.assert_array_equal(kernel.bind(w=wide[..., ::2], z=z, s=np.asfortranarray(s))(x=x), wanted)


def test_a_packed_layer_is_safe_from_many_threads():
    _, stored, z, s, _ = data("u8", 256, 8, 128, 1)
    layer = polyq.build(spec_of("u8", 256, 8, 128)).bind(w=stored, z=z, s=s)
    xs = [data("u8", 256, 8, 128, 3, seed)[-1] for seed in range(8)]
    wanted = [layer(x=x) for x in xs]
    wrong = []

    def run(i):
        for _ in range(20):
            if not np.array_equal(layer(x=xs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_one_multiply_of_a_large_matrix_without_scales_is_packed_too():
    r = np.random.default_rng(1)
    a, x = r.standard_normal((300, 200), dtype=np.float32), r.standard_normal((7, 200), dtype=np.float32)
    layer = polyq.build(polyq.parse("y[i, j] += x[i, k] * a[j, k]", x=("f32", ("m", 200)), a=("f32", (300, 200)))).bind(a=a)
    np.testing.assert_allclose(layer(x), x @ a.T, rtol=2e-5, atol=2e-4)


def test_constants_that_another_statement_reads_keep_their_layout():
    spec = polyq.parse(BODY + "\nt[n] += f32(w[n, g, j])", w=("u8", (64, 4, 128)), z=("f32", (64, 4)), s=("f32", (64, 4)),
                       x=("f32", ("m", 4, 128)))  # fmt: skip
    w, stored, z, s, x = data("u8", 64, 4, 128, 2)
    layer = polyq.build(spec).bind(w=stored, z=z, s=s)
    y, t = layer(x=x)
    np.testing.assert_allclose(t, w.sum((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(y, np.einsum("mgj,ngj->mn", x, (w - z[..., None]) * s[..., None]), rtol=1e-4, atol=1e-2)
    assert layer.nbytes <= 1.1 * (w.nbytes + z.nbytes + s.nbytes)


# ---- by hand
def packed_by_hand():
    spec = polyq.parse("y[i] += a[i, k] * x[k]", a=("f32", (16, 24)), x=("f32", (24,)))
    i, k = Affine.dim("e0"), Affine.dim("e1")
    plan = Schedule.naive(spec)._with(
        "copy_of", tensor="a", readers=("y",), shape=(Affine(2), Affine(24), Affine(8)), dims=("t", "k", "r"),
        source=(Affine.dim("t") * 8 + Affine.dim("r"), Affine.dim("k")), place=(i // 8, k, i % 8),
    )  # fmt: skip
    return plan.prepare("a.packed")


def test_a_hand_made_layout_is_prepared_by_bind():
    schedule = packed_by_hand()
    assert schedule.constants == ("a",)
    kernel = polyq.build(schedule)
    assert kernel.constants == ("a",)
    r = np.random.default_rng(2)
    a, x = r.standard_normal((16, 24), dtype=np.float32), r.standard_normal(24, dtype=np.float32)
    np.testing.assert_allclose(kernel.bind(a=a)(x=x), a @ x, rtol=1e-5, atol=1e-5)
    with pytest.raises(polyq.ArgumentError, match="none was bound"):
        kernel(x=x)


def test_the_two_parts_of_a_nest():
    nest = packed_by_hand().nest
    first, rest = prepared_part(nest), repeated_part(nest)
    assert [(b.name, b.kind) for b in first.buffers] == [("a", "input"), ("a.packed", "output")]
    assert [(b.name, b.kind) for b in rest.buffers] == [("a.packed", "input"), ("x", "input"), ("y", "output")]
    assert all(isinstance(node, Loop) for node in first.body)
    assert prologue_problem(nest) is None


def test_what_a_call_computes_cannot_be_prepared():
    spec = polyq.parse("t[i, k] = a[i, k] * x[k]\ny[i] += t[i, k]", a=("f32", (16, 24)), x=("f32", (24,)))
    with pytest.raises(polyq.ScheduleError, match=r"depends on a parameter|which a call"):
        Schedule.naive(polyq.parse("t[k] = 2 * x[k]\ny[k] = t[k] + t[k]", x=("f32", ("n",)))).prepare("t")
    with pytest.raises(polyq.ScheduleError, match="is an input or an output"):
        Schedule.naive(spec).prepare("y")
    two = polyq.parse("t[k] = 2 * x[k]\nu[k] = t[k] + 1\ny[k] = u[k] * u[k]", x=("f32", (8,)))
    with pytest.raises(polyq.ScheduleError, match="u reads t, which a call computes anew"):
        Schedule.naive(two).prepare("u")
    assert Schedule.naive(two).prepare("t").prepare("u").certificate().ok


# ---- ranges of a parameter
def test_each_range_has_a_certified_schedule_and_the_same_values():
    n, g, j = 96, 2, 64
    w, stored, z, s, _ = data("u8", n, g, j, 1)
    kernel = polyq.build(spec_of("u8", n, g, j), threads=2)
    layer = polyq.build(spec_of("u8", n, g, j), threads=2, constants=("w", "z", "s")).bind(w=stored, z=z, s=s)
    d = (w.astype(float) - z[..., None]) * s[..., None]
    for m in (0, 1, 2, 3, 9, 10, 11, 37, 48, 53):
        x = data("u8", n, g, j, m, seed=m)[-1]
        wanted = np.einsum("mgj,ngj->mn", x.astype(float), d)
        for got in (kernel(w=stored, z=z, s=s, x=x), layer(x=x)):
            assert got.shape == (m, n)
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-2)
        assert kernel.at(m=m).certificate.ok
        assert layer.kernel.at(m=m).certificate.ok
    assert kernel.at(m=1) is kernel
    assert kernel.at(m=9) is kernel.at(m=37)
    assert kernel.at(m=9).source != kernel.source
    assert [layer.kernel.at(m=m).sizes["m"] for m in (1, 37, 48)] == [1, 16, 128]
    assert kernel.at(m=48) is kernel.at(m=37)  # what is not bound has no range of many rows


def test_ranges_are_asked_for_by_the_names_of_parameters():
    kernel = polyq.build(spec_of("u8", 64, 2, 64))
    with pytest.raises(polyq.ArgumentError, match=r"at: q=3: expected whole numbers .* \(m\)"):
        kernel.at(q=3)
    with pytest.raises(polyq.ArgumentError, match="at: m=-1"):
        kernel.at(m=-1)
    assert polyq.build(polyq.parse("y[i] = 2 * x[i]", x=("f32", ("n",)))).at(n=5).sizes == {}


def test_strict_is_the_same_bound_unbound_and_interpreted_in_every_range():
    n, g, j = 40, 2, 32
    _, stored, z, s, _ = data("u8", n, g, j, 1)
    kernel = polyq.build(spec_of("u8", n, g, j), numerics="strict")
    layer = kernel.bind(w=stored, z=z, s=s)
    for m in (1, 2, 3, 9, 33, 50):
        x = data("u8", n, g, j, m, seed=m)[-1]
        wanted = polyq.interpret(kernel.spec, w=stored, z=z, s=s, x=x)
        np.testing.assert_array_equal(kernel(w=stored, z=z, s=s, x=x), wanted)
        np.testing.assert_array_equal(layer(x=x), wanted)


def test_the_inner_loop_of_a_packed_tile_reads_one_stretch_and_keeps_its_sums():
    source = polyq.build(spec_of("u8", 4096, 32, 128), constants=("w", "z", "s"), target="avx2").source
    loop = source[source.rindex("for (int64_t jb") :]
    loop = loop[: loop.index("\n        }")]
    assert loop.count("w_packed_words") >= 4
    assert "load_strided" not in loop
    assert "%" not in loop
    assert "/" not in loop.replace("//", "").replace("/*", "").replace("*/", "")


def test_all_ranges_of_a_plain_multiply_read_the_same_packed_operand():
    spec = polyq.parse("y[i, j] += x[i, k] * a[j, k]", x=("f32", ("m", 256)), a=("f32", (256, 256)))
    kernel = polyq.build(spec, constants=("a",))
    for m in (1, 4, 40):
        assert "a: packed when it is bound" in kernel.at(m=m).explain()
        assert kernel.at(m=m).executable.spec == kernel.executable.spec
    assert kernel.at(m=40) is not kernel


# ---- many rows
MANY = {
    "as it is": BODY,
    "producer dims j, g, n": BODY.replace("d[n, g, j]", "d[j, g, n]"),
    "scale first": BODY.replace("(f32(w[n, g, j]) - z[n, g]) * s[n, g]", "f32(w[n, g, j]) * s[n, g] - z[n, g] * s[n, g]"),
    "no zero point": BODY.replace("(f32(w[n, g, j]) - z[n, g])", "(z[n, g] * f32(w[n, g, j]))"),
    "two ops": "c[n, g, j] = f32(w[n, g, j]) - z[n, g]\nd[n, g, j] = c[n, g, j] * s[n, g]\n" + BODY.split("\n")[1],
}


@pytest.mark.parametrize(
    ("body", "dtype", "n"),
    [*((body, "u8", 64) for body in MANY.values()), (BODY, "i4", 100), (BODY, "u4", 40), (MANY["two ops"], "i8", 40)],
    ids=[*MANY, "i4", "u4", "i8 in two ops"],
)
def test_many_rows_share_a_panel_of_what_is_computed_from_codes(body, dtype, n):
    g, j = 2, 48
    _, stored, z, s, _ = data(dtype, n, g, j, 1)
    spec = spec_of(dtype, n, g, j, body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a range that gives way
        kernel = polyq.build(spec, constants=("w", "z", "s"), threads=2)
    layer = kernel.bind(w=stored, z=z, s=s)
    assert "d: kept, a panel at a time, since 128 rows share" in kernel.at(m=48).explain()
    assert "d.packed" in str(kernel.at(m=48).schedule)
    for m in (48, 61):
        x = data(dtype, n, g, j, m, seed=m)[-1]
        wanted = polyq.interpret(spec, precise=True, w=stored, z=z, s=s, x=x)
        np.testing.assert_allclose(layer(x=x), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_a_panel_that_no_cache_holds_is_not_kept():
    kernel = polyq.build(spec_of("u8", 64, 200, 128), constants=("w", "z", "s"))
    assert "panel" not in kernel.at(m=48).explain()
    assert "scratch d" not in str(kernel.at(m=48).schedule)


def test_the_inner_loop_over_a_panel_only_loads_and_multiplies():
    kernel = polyq.build(spec_of("u8", 4096, 32, 128), constants=("w", "z", "s"), target="avx2")
    source = kernel.at(m=128).source
    loops = source.split("for (int64_t j = 0")[1:]
    inner = max((loop[: loop.index("\n          }")] for loop in loops), key=len)
    assert inner.count("+=") == 12  # six rows of two vectors
    assert "convertvector" not in inner


# ---- what random programs found
def test_fields_of_words_keep_the_order_of_a_strict_sum():
    # n, j, g is the order of the sum: words along j would be summed after g
    text = "d[n, g, j] = (f32(w[j, n, g]) - z[n]) * s[n]\ny[n] += x[j, g] * d[n, g, j]"
    spec = polyq.parse(text, w=("u4", (16, 32, 3)), z=("f32", (32,)), s=("f32", (32,)), x=("f32", (16, 3)))
    r = np.random.default_rng(0)
    w, z, s = r.integers(0, 256, (16, 32, 2)).astype(np.uint8), *r.standard_normal((2, 32), dtype=np.float32)
    x = r.standard_normal((16, 3), dtype=np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a refused certificate
        kernel = polyq.build(spec, numerics="strict", constants=("w", "z", "s"))
    np.testing.assert_array_equal(kernel.bind(w=w, z=z, s=s)(x), polyq.interpret(spec, w=w, z=z, s=s, x=x))


def test_rows_that_do_not_end_with_a_whole_word_are_no_words():
    text = "y[m, n] += x[m, k] * (f32(w[n, k]) - z[n, k // 4])"
    spec = polyq.parse(text, w=("u8", (8, 33)), z=("f32", (8, 9)), x=("f32", ("m", 33)))
    r = np.random.default_rng(0)
    w, z = r.integers(0, 256, (8, 33)).astype(np.uint8), r.integers(0, 9, (8, 9)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a refused certificate
        kernel = polyq.build(spec, constants=("w", "z"))
    layer = kernel.bind(w=w, z=z)
    for m in (1, 5, 40):
        x = r.integers(-3, 4, (m, 33)).astype(np.float32)
        np.testing.assert_array_equal(layer(x), x @ (w - np.repeat(z, 4, 1)[:, :33]).T)


def test_a_range_that_would_pack_otherwise_gives_way_and_says_so(monkeypatch):
    spec, make = spec_of("u8", 64, 2, 64), building.make_plan

    def otherwise(program, numerics, target, constants, sizes, **options):
        return make(program, numerics, target, constants if sizes == {"m": 1} else (), sizes, **options)

    monkeypatch.setattr(building, "make_plan", otherwise)
    with pytest.warns(RuntimeWarning, match="m = (16|128): its own schedule would pack what is bound otherwise"):
        kernel = polyq.build(spec, constants=("w", "z", "s"))
    assert kernel.at(m=40) is kernel
    assert "m = 16: its own schedule would pack what is bound otherwise; the one for m = 1 runs" in kernel.explain()
    w, stored, z, s, x = data("u8", 64, 2, 64, 5)
    wanted = np.einsum("mgj,ngj->mn", x.astype(float), (w - z[..., None].astype(float)) * s[..., None])
    np.testing.assert_allclose(kernel.bind(w=stored, z=z, s=s)(x), wanted, rtol=1e-4, atol=1e-2)


def test_nothing_is_compiled_after_the_build_for_any_number_of_rows(monkeypatch):
    n, g, j = 96, 2, 64
    w, stored, z, s, _ = data("u8", n, g, j, 1)
    kernel = polyq.build(spec_of("u8", n, g, j))
    layer = kernel.bind(w=stored, z=z, s=s)
    compiled = compiler.Compiler.compile
    calls = []
    monkeypatch.setattr(compiler.Compiler, "compile", lambda *a, **k: calls.append(a) or compiled(*a, **k))
    d = (w.astype(float) - z[..., None]) * s[..., None]
    for m in range(1, 65):
        x = data("u8", n, g, j, m, seed=m)[-1]
        wanted = np.einsum("mgj,ngj->mn", x.astype(float), d)
        for got in (kernel(w=stored, z=z, s=s, x=x), layer(x)):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-2)
    assert not calls


def test_a_constant_that_another_statement_reads_is_no_reason_for_lanes_across_its_rows():
    text = "y[m, i] += x[m, k] * f32(w[i, k])\nt[i] = f32(w[i, 0])"
    spec = polyq.parse(text, w=("u8", (256, 256)), x=("f32", ("m", 256)))
    schedule = polyq.Schedule.auto(spec, constants=("w",), sizes={"m": 1})
    assert not schedule.plan.prepared
    assert schedule.directives == polyq.Schedule.auto(spec, sizes={"m": 1}).directives


def test_threads_that_bind_at_once_share_one_variant():
    _, stored, z, s, _ = data("u8", 256, 8, 128, 1)
    kernel, layers = polyq.build(spec_of("u8", 256, 8, 128)), []
    threads = [threading.Thread(target=lambda: layers.append(kernel.bind(w=stored, z=z, s=s))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({id(layer.kernel) for layer in layers}) == 1
    assert len(layers) == 4


def test_what_a_bound_callable_lacks_or_has_twice_is_named():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    layer = polyq.build(spec_of("u8", 256, 8, 128)).bind(w=stored, z=z, s=s)
    with pytest.raises(polyq.ArgumentError, match=r"^missing input x: expected x: f32\[m, 8, 128\]; bound are w, z, s$"):
        layer()
    packed = next(name for name in layer._held if name.startswith("w."))
    with pytest.raises(polyq.ArgumentError, match="bound already"):
        layer(x=x, **{packed: stored})


def test_a_layer_from_another_process_lies_on_cache_lines_and_has_its_own_layout():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    layer = polyq.build(spec_of("u8", 256, 8, 128)).bind(w=stored, z=z, s=s)
    again = pickle.loads(pickle.dumps(layer))
    assert {array.ctypes.data % 64 for array in again._held.values()} == {0}
    made, (kernel, held, layout, packing) = layer.__reduce__()
    np.testing.assert_array_equal(made(kernel, held, layout, packing)(x=x), layer(x=x))
    with pytest.raises(polyq.BuildError, match="bind the original arrays here"):
        made(kernel, held, "another", packing)


@pytest.mark.parametrize(
    ("text", "tensors"),
    [
        ("y[i] += x[i + j] * k[j] where i < n", {"x": ("f32", ("n + 2",)), "k": ("f32", (3,))}),
        ("y[i] += a[i, k] * x[k]", {"a": ("f32", ("n", 40)), "x": ("f32", (40,))}),
        ("y[i] = 2 * x[i]", {"x": ("f32", ("n",))}),
    ],
)
def test_a_program_without_rows_that_share_weights_has_one_schedule(text, tensors):
    kernel = polyq.build(polyq.parse(text, **tensors))
    assert kernel.at(n=1) is kernel.at(n=1000) is kernel
    assert kernel.sizes == {}
    assert "range" not in repr(kernel)


def test_the_card_says_which_range_a_kernel_serves():
    kernel = polyq.build(spec_of("u8", 64, 2, 64))
    assert "  range        made for m = 1; kernel.at(m=...) is that of another range\n" in repr(kernel)
    assert "made for m = 16;" in repr(kernel.at(m=9))


def test_a_bound_callable_is_checked_with_what_it_holds():
    _, stored, z, s, x = data("u8", 256, 8, 128, 2)
    layer = polyq.build(spec_of("u8", 256, 8, 128)).bind(w=stored, z=z, s=s)
    polyq.testing.assert_close(layer.kernel, w=stored, z=z, s=s, x=x)
    polyq.testing.assert_close(layer, w=stored, z=z, s=s, x=x)
    with pytest.raises(AssertionError, match=r"^y\[.*elements are off"):
        polyq.testing.assert_close(layer, w=stored, z=z, s=2 * s, x=x)  # not what was bound
    message = r"^assert_close: w, z, s: packed when bound, .* give what was bound as well, for the oracle: assert_close\(layer, w=w, z=z, s=s, \.\.\.\)$"
    with pytest.raises(polyq.ArgumentError, match=message):
        polyq.testing.assert_close(layer, x=x)
