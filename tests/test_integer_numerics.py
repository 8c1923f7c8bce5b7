"""Numerics ``i16``, ``i16x2`` and ``i8``: against float64 and the bound, on friendly and on hostile data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import QUANTIZED

import polyq
from polyq.affine.errors import ScheduleError
from polyq.affine.proofs import prove
from polyq.affine.quantize import MODES, choose
from polyq.affine.scalar import Load, map_scalar
from polyq.affine.unrounded import unrounded
from polyq.schedule.numerics import INTEGER, NUMERICS
from polyq.testing import assert_close

# root of the mean square of the error over that of the result, normal activations
RELATIVE = {"i16": 1e-4, "i16x2": 1e-6, "i8": 2e-2}
LAYER = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"


def layer(codes="u8", n=8, groups=3, group=32, activations="f32", text=LAYER):
    return polyq.parse(
        text, w=(codes, (n, groups, group)), z=("f32", (n, groups)), s=("f32", (n, groups)), x=(activations, ("m", groups, group))
    )


def data(spec, rows=2, seed=0):
    return polyq.affine.arrays.random_arrays(spec, {"m": rows}, seed)


def exact(a, codes):
    w = codes - a["z"].astype("f8")[..., None]
    return np.einsum("mgj,ngj,ng->mn", a["x"].astype("f8"), w, a["s"].astype("f8"))


def most(a, codes, numerics):
    """The bound by hand: half a step for each element, and f32 roundings of what is outside of the integer sums."""
    x, w = np.abs(a["x"].astype("f8")), np.abs(codes.astype("f8")) + np.abs(a["z"].astype("f8"))[..., None]
    step = x.max(axis=2) / {"i16": 32767, "i16x2": 2**29, "i8": 127}[numerics]
    off = 0.5001 * step[:, :, None] + 2.0**-20 * x + 2.0**-112
    return np.einsum("mgj,ngj,ng->mn", off, w, np.abs(a["s"].astype("f8"))) + 2.0**-20 * np.einsum("mgj,ngj,ng->mn", x, w, np.abs(a["s"]))


def checked(kernel, a):
    """The kernel's result, held to its bound against the oracle; elements without one are not compared."""
    got, oracle, bound = kernel(**a), polyq.interpret(kernel.spec, **a).astype("f8"), kernel.error_bound(**a)
    with np.errstate(invalid="ignore"):
        assert np.all((np.abs(got.astype("f8") - oracle) <= bound) | np.isinf(bound))
    return got.astype("f8"), bound


def test_the_names_of_modes_stand_in_two_places():
    assert tuple(MODES) == INTEGER == NUMERICS[2:]


# ---- every relative
@pytest.mark.parametrize("program", QUANTIZED, ids=lambda p: p.name)
def test_relatives(program):
    spec = program.spec()
    arrays = program.arrays(spec)
    number = QUANTIZED.index(program)
    for numerics, kind in (("i16", "auto"), (INTEGER[number % 3], "naive"), (("i8", "i16x2")[number % 2], "auto")):
        schedule = getattr(polyq.Schedule, kind)(spec, numerics=numerics)
        kernel = polyq.build(schedule, threads=2)
        assert kernel.certificate.ok
        assert "i32(" in str(schedule.plan.spec)
        assert_close(kernel, **arrays)
        got = kernel(**arrays)
        for y, right in zip(got if isinstance(got, tuple) else (got,), program.expected(spec, arrays), strict=True):
            assert np.sqrt(np.mean((y - right) ** 2) / np.mean(right**2)) < RELATIVE[numerics]


# ---- data
def outliers(a, rng):
    a["x"][:, rng.integers(0, 3, 2), rng.integers(0, 32, 2)] *= 100


def half_steps(a, rng):
    """Every element but the greatest lies between two integers, all in the same direction."""
    a["x"][:] = (np.round(a["x"] * 100) + 0.4999) / 32767.0
    a["x"][:, :, 0] = 1.0


def extremes(a, rng):
    a["x"][:] = np.where(rng.integers(0, 2, a["x"].shape) == 1, 1.0, -1.0)
    a["x"][0] = 3e38 / 1e12
    a["x"][1] = 1e-30


@pytest.mark.parametrize("numerics", INTEGER)
@pytest.mark.parametrize("change", [lambda a, rng: None, outliers, half_steps, extremes], ids=["normal", "outliers", "half steps", "extremes"])
def test_the_bound_holds_against_float64(numerics, change):
    spec = layer()
    kernel = polyq.build(spec, numerics=numerics)
    for seed in range(3):
        a = data(spec, 4, seed)
        change(a, np.random.default_rng(seed))
        got, bound = checked(kernel, a)
        right = exact(a, a["w"].astype("f8"))
        by_hand = most(a, a["w"], numerics)
        assert np.all(np.abs(got - right) <= by_hand)
        assert np.all(bound <= 2 * by_hand)


@pytest.mark.parametrize("numerics", INTEGER)
@pytest.mark.parametrize("activations", ["f16", "bf16"])
def test_sixteen_bit_activations(numerics, activations):
    spec = layer(activations=activations, text=LAYER.replace("x[m, g, j]", "f32(x[m, g, j])"))
    kernel = polyq.build(spec, numerics=numerics)
    a = data(spec, 3)
    got, _ = checked(kernel, a)
    right = exact(a, a["w"].astype("f8"))
    assert np.sqrt(np.mean((got - right) ** 2) / np.mean(right**2)) < RELATIVE[numerics]


@pytest.mark.parametrize("numerics", INTEGER)
def test_a_layer_of_f16_throughout(numerics):
    text = "d[n, g, j] = (f16(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
    shapes = {"z": ("f16", (8, 3)), "s": ("f16", (8, 3)), "x": ("f16", ("m", 3, 32))}
    spec = polyq.parse(text, w=("u4", (8, 3, 32)), **shapes)
    kernel = polyq.build(spec, numerics=numerics)
    assert "i32(" in str(kernel.schedule.plan.spec)
    checked(kernel, data(spec, 3))


@pytest.mark.parametrize("kind", ["naive", "auto"])
@pytest.mark.parametrize("numerics", INTEGER)
def test_what_is_no_number(numerics, kind):
    spec = layer()
    kernel = polyq.build(getattr(polyq.Schedule, kind)(spec, numerics=numerics))
    a = data(spec, 6)
    a["x"][0, 1] = 0
    a["x"][1, :] = 0
    a["x"][2, :] = 1e-38
    a["x"][3, 1, 5], a["x"][4, 2, 0], a["x"][5, 0, 31] = np.nan, np.inf, -np.inf
    with np.errstate(all="ignore"):
        got = kernel(**a)
    rest = a["x"][0:1].copy()
    assert np.isfinite(got[0]).all()
    assert np.array_equal(got[0:1], kernel(**{**a, "x": rest}))
    assert not got[1:3].any()  # exactly zero
    assert np.isnan(got[3:]).all()  # a group with an infinity or a NaN makes NaN of all that read it
    assert np.isinf(kernel.error_bound(**a)[3:]).all()


def test_an_outlier_spoils_its_own_group_alone():
    spec = layer(groups=2)
    a = data(spec, 1)
    a["x"][0, 0, 0] = 1e6
    a["s"][:, 0] = 0
    got = polyq.build(spec, numerics="i8")(**a)
    a["x"][0, 0, 0] = 1
    assert np.array_equal(got, polyq.build(spec, numerics="i8")(**a))


# ---- widths
@pytest.mark.parametrize(("group", "cut"), [(256, False), (257, True), (512, True), (1000, True)])
def test_sums_that_i32_might_not_hold_are_cut(group, cut):
    spec = layer(n=3, groups=2, group=group)
    schedule = polyq.Schedule.naive(spec, numerics="i16")
    assert ("cut into groups" in schedule.explain()) == cut
    a = data(spec, 2)
    a["w"][:], a["x"][0], a["x"][1] = 255, 1.0, -1.0  # the greatest sums there are
    for kernel in (polyq.build(schedule), polyq.build(spec, numerics="i16")):
        got, _ = checked(kernel, a)
        right = exact(a, a["w"].astype("f8"))
        assert np.all(np.abs(got - right) <= 1e-4 * np.abs(a["s"]).sum(axis=1) * 255 * group)


def test_one_scale_for_each_row_is_cut_as_well():
    spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k]) * s[n]", w=("i8", (4, 1000)), s=("f32", (4,)), x=("f32", ("m", 1000)))
    a = data(spec, 3)
    for numerics in INTEGER:
        got, _ = checked(polyq.build(spec, numerics=numerics), a)
        right = a["x"].astype("f8") @ (a["w"] * a["s"].astype("f8")[:, None]).T
        assert np.sqrt(np.mean((got - right) ** 2) / np.mean(right**2)) < RELATIVE[numerics]


def test_integers_are_refused_where_they_might_wrap():
    spec = polyq.parse("t[n] += f32(a[n, k]) * f32(b[n, k])\ny[n] = 2.0 * t[n]", a=("u8", (3, 258)), b=("i16", (3, 258)))
    with pytest.raises(ScheduleError, match=r"^integers\('t'\): 258 terms of up to 8355840 may leave i32 \(2147483647\); sum fewer of them at a time$"):
        polyq.Schedule.naive(spec).integers("t")
    short = polyq.parse("t[n] += f32(a[n, k]) * f32(b[n, k])\ny[n] = 2.0 * t[n]", a=("u8", (3, 257)), b=("i16", (3, 257)))
    assert polyq.Schedule.naive(short).integers("t").certificate().ok
    with pytest.raises(ScheduleError, match=r"^\.integers\(op='y'\): it changes the rounding|^integers\('y'\): expected a sum of products of integers"):
        polyq.Schedule.naive(short).integers("y")


# ---- what is quantized
def test_consumers_of_the_same_activations_share_them():
    tensors = {f"{n}{i}": t for i in "qkv" for n, t in (("w", ("u8", (8, 3, 32))), ("z", ("f32", (8, 3))), ("s", ("f32", (8, 3))))}
    text = "\n".join(f"y{i}[m, n] += x[m, g, j] * ((f32(w{i}[n, g, j]) - z{i}[n, g]) * s{i}[n, g])" for i in "qkv")
    spec = polyq.parse(text, x=("f32", ("m", 3, 32)), **tensors)
    schedule = polyq.Schedule.naive(spec, numerics="i16")
    assert sum(op.target.startswith("x.i16") for op in schedule.plan.spec.ops) == 1
    assert_close(polyq.build(spec, numerics="i16"), **data(spec))


def test_activations_that_change_in_between_are_rounded_anew():
    text = LAYER + "\nx[m, g, j] = 3.0 * x[m, g, j]\nv[m, n] += x[m, g, j] * d[n, g, j]"
    spec = layer(text=text)
    schedule = polyq.Schedule.naive(spec, numerics="i16")
    assert sum(op.target.startswith("x.i16") for op in schedule.plan.spec.ops) == 2
    assert_close(polyq.build(schedule), **data(spec))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("y[m, n] += x[m, g, j] * f32(i32(w[n, g, j]) - 8) * s[n, g]", lambda a, w: (w - 8) * a["s"][..., None]),
        ("y[m, n] -= x[m, g, j]".replace("-=", "+=") + " * (s[n, g] * -f32(w[n, g, j]))", lambda a, w: -w * a["s"][..., None]),
        ("y[m, n] += (s[n, g] * f32(w[n, g, j]) + z[n, g]) * x[m, g, j]", lambda a, w: w * a["s"][..., None] + a["z"][..., None]),
        ("y[m, n] += f32(w[n, g, j]) * x[m, g, j]", lambda a, w: w.astype("f8")),
    ],
)
@pytest.mark.parametrize("codes", ["u4", "i8"])
def test_bodies(text, right, codes):
    spec = layer(codes, text=text)
    a = data(spec, 3)
    logical = polyq.affine.arrays.from_storage(spec.tensor("w"), a["w"], (8, 3, 32)).astype("f8")
    got, _ = checked(polyq.build(spec, numerics="i16"), a)
    expected = np.einsum("mgj,ngj->mn", a["x"].astype("f8"), right(a, logical))
    assert np.sqrt(np.mean((got - expected) ** 2) / np.mean(expected**2)) < RELATIVE["i16"]


def test_padding_never_reaches_a_group():
    spec = polyq.parse(
        "y[m, n] += x[m, k] * (f32(w[n, k]) * s[n, k//32]) where k < 40", w=("u4", (2, 64)), s=("f32", (2, 2)), x=("f32", ("m", 40))
    )
    w = np.zeros((2, 64), np.uint8)
    w[0, :40], w[1, :40], w[:, 40:] = 1, 2, 15
    packed = (w[:, ::2] | w[:, 1::2] << 4).astype(np.uint8)
    a = {"w": packed, "s": np.float32([[1, 10], [1, 10]]), "x": np.ones((1, 40), np.float32)}
    for kind in ("naive", "auto"):
        kernel = polyq.build(getattr(polyq.Schedule, kind)(spec, numerics="i16"))
        assert np.allclose(kernel(**a), [[112, 224]], rtol=1e-6, atol=0)


def test_a_triangle_of_codes():
    spec = polyq.parse("y[i] += x[k] * (f32(w[i, k]) * s[i]) where k <= i", w=("i8", (40, 40)), s=("f32", (40,)), x=("f32", (40,)))
    a = data(spec)
    for kind in ("naive", "auto"):
        kernel = polyq.build(getattr(polyq.Schedule, kind)(spec, numerics="i16"))
        assert "i32(" in str(kernel.schedule.plan.spec)
        got, _ = checked(kernel, a)
        right = np.tril(a["w"].astype("f8")) @ a["x"] * a["s"]
        assert np.sqrt(np.mean((got - right) ** 2) / np.mean(right**2)) < RELATIVE["i16"]


def test_a_convolution_is_rounded_without_copies():
    text = "y[o, h] += x[c, h + r] * f32(k[o, c, r]) where h < 30"
    spec = polyq.parse(text, x=("f32", (16, 32)), k=("i8", (4, 16, 3)))
    schedule = polyq.Schedule.auto(spec, numerics="i16")
    assert any(t.name == "x.i16" and sorted(t.shape) == [16, 32] for t in schedule.plan.spec.all_tensors)
    assert_close(polyq.build(schedule), **data(spec))


def test_an_activation_that_lies_across_its_rounded_copy_gets_tiles():
    text = """
        d[n, g, j] = (f64(w[j, g, n]) - f64(z[g, n])) * s[g, n]
        y[m, n] += f64(x[m, g, j]) * d[n, g, j] where n >= 1
    """
    tensors = {"x": ("i8", ("m", 1, 16)), "s": ("f64", (1, 64)), "z": ("u8", (1, 64)), "w": ("i2", (16, 1, 64))}
    spec = polyq.parse(text, **tensors)
    kernel = polyq.build(spec, numerics="i16")
    assert "kept plain" not in kernel.explain()
    rounded = kernel.schedule.plan.stage("d.i16")
    assert [rounded.kind(a) for a in rounded.order] == ["parallel", "serial", "serial", "vector"]
    for rows in (1, 3):
        assert_close(kernel, **data(spec, rows))


@pytest.mark.parametrize(
    ("text", "tensors", "said"),
    [
        ("y[i, j] += a[i, k] * b[k, j]", {"a": ("f32", (8, 16)), "b": ("f32", (16, 8))}, "nothing is quantized"),
        ("y[i, j] += i32(a[i, k]) * i32(b[k, j])", {"a": ("i8", (8, 16)), "b": ("i8", (16, 8))}, "nothing is quantized"),
        ("y[n] += x[k] * f32(w[n, k]) * s[k]", {"w": ("u8", (8, 16)), "x": ("f32", (16,)), "s": ("f32", (16,))}, "no float operand meets narrow integers over 8"),
        ("y[n] += x[k] * f32(w[n, k])", {"w": ("u8", (8, 4)), "x": ("f32", (4,))}, "no float operand meets narrow integers over 8"),
    ],
)  # fmt: skip
def test_what_stays_in_floats_says_so(text, tensors, said):
    spec = polyq.parse(text, **tensors)
    assert said in polyq.build(spec, numerics="i16").explain()
    assert_close(polyq.build(spec, numerics="i16"), **data(spec))


def test_quantize_says_what_it_expects():
    spec = polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", w=("u8", (4, 16)), x=("f32", ("m", 16)))
    with pytest.raises(ScheduleError, match=r"^quantize\('y', 'x', \['n'\]\): expected a sum of products that reads one element of x, and reduced dims"):
        polyq.Schedule.naive(spec).quantize("y", "x", ["n"], "i8")


# ---- proofs
@pytest.mark.parametrize("numerics", INTEGER)
def test_without_its_roundings_the_program_is_the_users(numerics):
    spec = layer()
    plan = polyq.Schedule.auto(spec, numerics=numerics).plan
    assert prove(spec, unrounded(plan.spec)).ok
    assert not prove(spec, plan.spec).ok  # a rounding is no identity


@pytest.mark.parametrize(("tensor", "axis", "last"), [("x.i16", 2, 31), ("x.step", 1, 2)])
def test_a_wrong_rewrite_is_refuted(tensor, axis, last):
    spec = polyq.Schedule.naive(layer(), numerics="i16").plan.spec

    def read(node):
        if isinstance(node, Load) and node.tensor == tensor and str(node.index[0]) == "m":
            index = (*node.index[:axis], last - node.index[axis], *node.index[axis + 1 :])
            return replace(node, index=index)
        return node

    wrong = spec.with_ops(tuple(replace(op, body=map_scalar(op.body, read)) for op in spec.ops), spec.all_tensors)
    assert prove(layer(), unrounded(wrong)).difference is not None


def test_choices_are_values():
    choice = choose(polyq.parse("y[m, n] += x[m, k] * f32(w[n, k])", w=("u8", (4, 16)), x=("f32", ("m", 16))), "y", MODES["i8"])
    assert (choice.op, choice.inner, choice.cut) == ("y", ("k",), None)


@pytest.mark.parametrize(
    ("numerics", "dtype", "message"),
    [
        ("i16", "i8", "quantize('y', 'x', ['j']): expected a signed type that holds 32767, got dtype='i8'"),
        ("i8", "u8", "quantize('y', 'x', ['j']): expected a signed type that holds 127, got dtype='u8'"),
    ],
)
def test_elements_of_a_type_that_does_not_hold_them_are_refused(numerics, dtype, message):
    spec = polyq.parse("y[m, n] += x[m, j] * f32(w[n, j])", w=("u4", (8, 32)), x=("f32", ("m", 32)))
    with pytest.raises(ScheduleError) as caught:
        polyq.Schedule.naive(spec).quantize("y", "x", ["j"], numerics, dtype=dtype)
    assert str(caught.value) == message


def test_elements_lie_in_the_type_that_is_asked_for():
    spec = polyq.parse("y[m, n] += x[m, j] * f32(w[n, j])", w=("u4", (8, 32)), x=("f32", ("m", 32)))
    made = polyq.Schedule.naive(spec).quantize("y", "x", ["j"], "i8", dtype="i8")
    assert made.plan.spec.tensor("x.i8").dtype == "i8"
    assert polyq.Schedule.naive(spec).quantize("y", "x", ["j"], "i8").plan.spec.tensor("x.i8").dtype == "i16"
