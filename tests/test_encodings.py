"""Encodings: roles of dims against what einsum says, composed maps against numpy's reshapes and transposes."""

import dataclasses
import pickle
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyq
from polyq import Step, Tensor, encodings, propagate
from polyq.affine.encodings import depends


def encoding_of(text, tensor, **tensors):
    return next(e for e in encodings(polyq.parse(text, **tensors)) if e.tensor.name == tensor)


def matmul_on(shape):
    """The encoding on the left operand of a matmul, called t."""
    return encoding_of("y[m, n] += t[m, k] * c[n, k]", "t", t=("f32", shape), c=("f32", (16, shape[1])))


def met_cells(e):
    """The cell that each instance of the reader meets, by evaluating the access."""
    names, sizes = e.dims, [n.const for n in e.extents]
    grid = np.meshgrid(*map(np.arange, sizes), indexing="ij", sparse=True)
    values = dict(zip(names, grid, strict=True))
    return [np.broadcast_to(np.asarray(x.evaluate(values)), sizes) for x in e.access.results]


# ---- roles, from accesses alone
@pytest.mark.parametrize(
    ("statement", "tensors", "roles"),
    [
        ("y[i, j] += a[i, l] * b[l, j]", {"a": "il", "b": "lj"}, "m=i n=j k=l"),
        ("y[j, i] += b[j, l] * a[l, i]", {"a": "li", "b": "jl"}, "m=j n=i k=l"),
        ("y[n, m] += f32(a[n, m, k]) * b[n, k]", {"a": "nmk", "b": "nk"}, "batch=n m=m k=k"),
        ("y[h, b, i, j] += q[h, b, i, d] * p[h, b, j, d]", {"q": "hbid", "p": "hbjd"}, "batch=hb m=i n=j k=d"),
        ("y[i, j] += x[i, g, l] * ((w[j, g, l] - z[j, g]) * s[j, g])", {"x": "igl", "w": "jgl", "z": "jg", "s": "jg"},
         "m=i n=j k=gl"),
        ("y[i, j] += s[j, g] * x[i, g, l] * w[j, g, l]", {"x": "igl", "w": "jgl", "s": "jg"}, "m=i n=j k=gl"),
        ("y[i, j] += a[l] * x[i, l] * w[j, l]", {"a": "l", "x": "il", "w": "jl"}, "m=i n=j k=l"),
        ("y[i] += x[g, l] * w[i, g, l]", {"x": "gl", "w": "igl"}, "n=i k=gl"),
        ("y[i] += w[i, l] * x[l]", {"w": "il", "x": "l"}, "m=i k=l"),
        ("y[a, b, f] += x[a, b + r, c] * k[f, r, c]", {"x": "abc", "k": "frc"}, "m=ab n=f k=rc"),
        ("y[i] max= x[i, l]", {"x": "il"}, "batch=i k=l"),
        ("y[i, j] = 2 * x[j, i]", {"x": "ji"}, "batch=ij"),
        ("y[i, j] = x[i, j] + b[j]", {"x": "ij", "b": "j"}, "batch=ij"),
        ("y[i, j] = a[i] * b[j]", {"a": "i", "b": "j"}, "m=i n=j"),
    ],
)  # fmt: skip
def test_roles(statement, tensors, roles):
    size = dict(zip("abcdfghijlkmnr", range(3, 17), strict=True)) | {"b": 9}
    shapes = {
        t: ("f32", tuple(size[d] + (size["r"] if (t, d) == ("x", "b") else 0) for d in axes))
        for t, axes in tensors.items()
    }
    if " + r" in statement:
        statement += f" where b < {size['b']}"
    spec = polyq.parse(statement, **shapes)
    for e in encodings(spec):
        found = {r: "".join(e.dims_of(r)) for r in ("batch", "m", "n", "k")}
        assert {r: "".join(sorted(d)) for r, d in found.items() if d} == {
            r: "".join(sorted(d)) for r, _, d in (part.partition("=") for part in roles.split())
        }


def test_renamed_dims_and_operands_do_not_matter():
    one = encoding_of("y[m, n] += x[m, k] * w[n, k]", "w", x=("f32", (3, 8)), w=("f32", (4, 8)))
    two = encoding_of("m[k, b] += n[k, y] * p[b, y]", "p", n=("f32", (3, 8)), p=("f32", (4, 8)))
    assert (one.m, one.n, one.k) == (("m",), ("n",), ("k",))
    assert (two.m, two.n, two.k) == (("k",), ("b",), ("y",))
    assert (one.axes("n"), one.axes("k"), two.axes("n"), two.axes("k")) == ((0,), (1,), (0,), (1,))


def test_a_dim_that_a_subscript_only_seems_to_have():
    e = encoding_of("y[i] += x[i, (8*j + r)//8] where j < 5, r < 8", "x", x=("f32", (4, 5)))
    assert (e.k, e.axes("k")) == (("j", "r"), (1,))
    assert not depends(e.access.results[1], "r", e.domain)  # (8*j + r)//8 is j for each r below 8
    assert depends(e.access.results[1], "j", e.domain)
    even = encoding_of("y += x[(i // 2) + 4 * (i % 2)] where i < 8, i % 2 == 0", "x", x=("f32", (8,)))
    assert even.axes("k") == (0,)  # two steps apart


def test_several_dims_of_each_role_and_the_text():
    spec = polyq.parse(
        "y[b, m, p, n, q] += x[b, m, p, k, l] * w[b, n, q, k, l]",
        x=("f32", (2, 3, 4, 5, 6)), w=("f32", (2, 7, 8, 5, 6)),
    )  # fmt: skip
    x, w, y = encodings(spec)
    assert (x.batch, x.m, x.n, x.k) == (("b",), ("m", "p"), ("n", "q"), ("k", "l"))
    assert [{r: e.axes(r) for r in ("batch", "m", "n", "k")} for e in (x, w, y)] == [
        {"batch": (0,), "m": (1, 2), "n": (), "k": (3, 4)},
        {"batch": (0,), "m": (), "n": (1, 2), "k": (3, 4)},
        {"batch": (0,), "m": (1, 2), "n": (3, 4), "k": ()},
    ]
    assert str(w) == (
        "y reads w[b, n, q, k, l]: batch = b; m = m, p; n = n, q; k = k, l; axes of w: batch {0}, n {1, 2}, k {3, 4}"
    )
    assert str(y).startswith("y writes y[b, m, p, n, q]: ")
    assert pickle.loads(pickle.dumps(w)) == w
    assert len({x, w, y}) == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        w.reader = "z"
    assert encodings(spec, "w") == (w,)
    with pytest.raises(polyq.SpecError, match="there is no tensor 'v'; the spec has x, w, y"):
        encodings(spec, "v")


# ---- reshapes
A = Tensor("a", "f32", (2, 4096, 640))


@pytest.mark.parametrize("single_k", [True, False])
def test_k_moves_above_a_collapse_of_other_dims(single_k):
    e = matmul_on((8192, 640))
    assert (e.axes("m"), e.axes("k")) == ((0,), (1,))
    got = propagate(e, Step.collapse(A, "t", [[0, 1], [2]]), single_k=single_k)
    assert got.reason is None
    assert (got.encoding.axes("m"), got.encoding.axes("k")) == ((0, 1), (2,))
    assert str(got.encoding.access) == "(m, n, k) -> (m//4096, m%4096, k)"
    assert (got.encoding.maps, got.encoding.roles, got.encoding.operand) == (e.maps, e.roles, e.operand)
    assert got.encoding.path == ("t",)


def test_single_k_stops_below_the_step_that_merges_k():
    top = Tensor("top", "f32", (2, 4096, 64, 10))
    merge = Step.collapse(top, "a", [[0], [1], [2, 3]])
    last = Step.collapse(merge.result, "t", [[0, 1], [2]])
    stopped = propagate(matmul_on((8192, 640)), [last, merge], single_k=True)
    assert (stopped.encoding.tensor, stopped.encoding.axes("k")) == (A, (2,))
    assert stopped.reason == (
        "single_k: axis 2 of a (640 cells of k) is collapsed from (64, 10), the axes {2, 3} of top, by "
        "`collapse: a[d0, d1, 10*d2 + d3] of top[d0, d1, d2, d3]`"
    )
    assert str(stopped).endswith(f"stopped: {stopped.reason}")
    through = propagate(matmul_on((8192, 640)), [last, merge])
    assert through.reason is None
    assert [t.tensor.name for t in through.trail] == ["t", "a", "top"]
    assert (through.encoding.axes("m"), through.encoding.axes("k")) == ((0, 1), (2, 3))
    assert str(through.encoding.access) == "(m, n, k) -> (m//4096, m%4096, k//10, k%10)"


def test_expand_then_collapse_has_an_equal_composed_map():
    source = Tensor("s", "f32", (4, 8, 4, 1, 128))
    one = Step.collapse(source, "b", [[0], [1, 2], [3, 4]])
    two = Step.expand(one.result, "c", [[0], [1, 2], [3]], (4, 1, 32, 128))
    three = Step.collapse(two.result, "t", [[0], [1, 2, 3]])
    direct = Step.collapse(source, "t", [[0], [1, 2, 3, 4]])
    chain, at_once = (propagate(matmul_on((4, 4096)), steps) for steps in ([three, two, one], direct))
    assert (chain.reason, at_once.reason) == (None, None)
    assert chain.encoding.access == at_once.encoding.access
    assert chain.encoding.equals(at_once.encoding)
    assert str(chain.encoding.access) == "(m, n, k) -> (m, k//512, k//128 - 4*(k//512), 0, k%128)"
    assert chain.encoding.maps == at_once.encoding.maps
    stopped = propagate(matmul_on((4, 4096)), [three, two, one], single_k=True)
    assert stopped.encoding.tensor.name == "t"
    assert "is collapsed from (32, 128), the axes {2, 3} of c" in stopped.reason


def test_unit_axes_are_no_collapse_of_k():
    step = Step.collapse(Tensor("a", "f32", (8, 1, 640, 1)), "t", [[0], [1, 2, 3]])
    got = propagate(matmul_on((8, 640)), step, single_k=True)
    assert (got.reason, got.encoding.axes("k")) == (None, (2,))


def test_single_k_stops_where_k_shares_an_axis():
    flat = Step.expand(Tensor("flat", "f32", (5120,)), "t", [[0, 1]], (8, 640))
    got = propagate(matmul_on((8, 640)), flat, single_k=True)
    assert got.reason == (
        "single_k: axis 1 of t (640 cells of k) shares axis 0 of flat with {0} in `expand: t[d0, d1] of flat[640*d0 + d1]`"
    )
    assert str(propagate(matmul_on((8, 640)), flat).encoding.access) == "(m, n, k) -> (k + 640*m)"


def test_down_and_up_again_is_where_it_began():
    e = matmul_on((8192, 640))
    step = Step.expand(e.tensor, "u", [[0, 1], [2]], (2, 4096, 640))
    down = propagate(e, step).encoding
    assert str(down.access) == "(m, n, k) -> (m//4096, m%4096, k)"
    up = propagate(down, step).encoding
    assert up.access == e.access
    assert up.path == ("t", "u")
    assert up.equals(e)


def test_symbolic_rows():
    e = encoding_of("y[m, n] += t[m, k] * c[n, k]", "t", t=("f32", ("m", 64)), c=("f32", (16, 64)))
    got = propagate(e, Step.expand(Tensor("a", "f32", ("m", 64)), "t", [[0], [1]], ("m", 64)), single_k=True).encoding
    assert (str(got.access), got.axes("m"), got.axes("k")) == ("(m, n, k) -> (m, k)", (0,), (1,))
    rows = encoding_of("y[m, n] += t[m, k] * c[n, k] where m < 4*b", "t", t=("f32", ("4*b", 64)), c=("f32", (16, 64)))
    up = propagate(rows, Step.collapse(Tensor("a", "f32", ("b", 4, 64)), "t", [[0, 1], [2]]), single_k=True)
    assert str(up.encoding.access) == "(m, n, k) -> (m//4, m%4, k)"


# ---- ops of a program
GROUPED = """
    d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]
    y[m, n] += x[m, g, j] * d[n, g, j]
"""


def grouped():
    return polyq.parse(GROUPED, w=("u8", (64, 4, 32)), z=("f32", (64, 4)), s=("f32", (64, 4)), x=("f32", ("m", 4, 32)))


@pytest.mark.parametrize("single_k", [True, False])
def test_through_a_dequantize_to_codes_scales_and_zero_points(single_k):
    spec = grouped()
    e = encodings(spec, "d")[1]
    for name, access, k in (("w", "(n, g, j)", (1, 2)), ("s", "(n, g)", (1,)), ("z", "(n, g)", (1,))):
        got = propagate(e, Step.path(spec, "d", name), single_k=single_k)
        assert got.reason is None
        assert (str(got.encoding.access), got.encoding.tensor) == (f"(m, n, g, j) -> {access}", spec.tensor(name))
        assert (got.encoding.axes("n"), got.encoding.axes("k")) == ((0,), k)
        assert got.encoding.maps == e.maps


def test_through_transposes_casts_and_broadcasts_written_as_ops():
    spec = polyq.parse(
        """
        c[k, n] = f32(w[k, n])
        t[n, k] = c[k, n]
        b[p, n, k] = t[n, k] where p < 3
        e[p, n, k] = exp(b[p, n, k])
        y[p, m, n] += x[p, m, k] * e[p, n, k]
        """,
        w=("i8", (24, 16)), x=("f32", (3, 5, 24)),
    )  # fmt: skip
    e = encodings(spec, "e")[-1]
    got = propagate(e, Step.path(spec, "e", "w"), single_k=True)
    assert [t.tensor.name for t in got.trail] == ["e", "b", "t", "c", "w"]
    assert str(got.encoding.access) == "(p, m, n, k) -> (k, n)"
    assert (e.batch, e.m, e.n, e.k) == (("p",), ("m",), ("n",), ("k",))
    assert (got.encoding.axes("k"), got.encoding.axes("n"), got.encoding.axes("batch")) == ((0,), (1,), ())


def test_a_reshape_that_is_written_as_an_op():
    spec = polyq.parse(
        "t[4*i + j, k] = a[i, j, k]\ny[m, n] += t[m, k] * c[n, k]", a=("f32", (2, 4, 6)), c=("f32", (3, 6))
    )
    got = propagate(encodings(spec, "t")[-1], Step.of(spec, "t", "a"), single_k=True)
    assert str(got.encoding.access) == "(m, n, k) -> (m//4, m%4, k)"


def test_through_values_that_each_depend_on_many():
    spec = polyq.parse("t[m, k] += a[m, k, r]\ny[m, n] += t[m, k] * c[n, k]", a=("f32", (2, 4, 6)), c=("f32", (3, 4)))
    got = propagate(encodings(spec, "t")[-1], Step.of(spec, "t", "a"))
    assert got.encoding == encodings(spec, "t")[-1]
    assert got.reason.startswith("`t: t[m, k] of a[m, k, r]`: t[0, 0] belongs to a[0, 0, 0] and to a[0, 0, ")


def test_where_the_reader_meets_more_than_the_step_has():
    spec = polyq.parse(
        """
        t[i] = 0.0 where i < 12
        t[i + 2] = a[i]
        y += t[k] * c[k]
        """,
        a=("f32", (8,)), c=("f32", (12,)),
    )  # fmt: skip
    writer = next(op.name for op in spec.ops if op.reads and op.target == "t")
    got = propagate(encodings(spec, "t")[-1], Step.of(spec, writer, "a"))
    assert f"`{writer}: t[i + 2] of a[i]`: t[" in got.reason
    assert got.reason.endswith("which y meets, has no counterpart in a")
    spec = polyq.parse("t[i + 2] = a[i]\ny += t[k + 2] * c[k] where k < 8", a=("f32", (8,)), c=("f32", (8,)))
    got = propagate(encodings(spec, "t")[-1], Step.of(spec, "t", "a"), single_k=True)
    assert (str(got.encoding.access), got.reason) == ("(k) -> (k)", None)


def test_a_source_without_the_broadcast_axis_does_not_tell_where_a_reader_goes():
    e = encoding_of("y[m, n] += s[m] * c[n, m]", "s", s=("f32", (8,)), c=("f32", (3, 8)))
    step = Step.broadcast(e.tensor, "b", (8, 5), (1,))
    assert propagate(e, step).reason.startswith("`broadcast: b[d0, d1] of s[d0]`: s[0] belongs to b[0, 0] and to b[0, ")


# ---- against numpy
@st.composite
def chains(draw):
    """Steps from a source of a few axes to a matrix, and what numpy does for each."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    t, steps = Tensor("t0", "f32", shape), []
    cells = np.arange(int(np.prod(shape))).reshape(shape)
    for i in range(draw(st.integers(0, 3))):
        rank, name = len(t.shape), f"t{i + 1}"
        match draw(st.sampled_from(["transpose", "collapse", "expand", "cast", "broadcast"])):
            case "transpose":
                order = draw(st.permutations(range(rank)))
                step, cells = Step.transpose(t, name, order), cells.transpose(order)
            case "collapse" if rank > 1:
                at = draw(st.integers(0, rank - 2))
                groups = [[k] for k in range(at)] + [[at, at + 1]] + [[k] for k in range(at + 2, rank)]
                step = Step.collapse(t, name, groups)
                cells = cells.reshape([int(np.prod([t.shape[k] for k in g])) for g in groups])
            case "expand":
                at = draw(st.integers(0, rank - 1))
                inner = draw(st.sampled_from([d for d in (1, 2, 3) if t.shape[at] % d == 0]))
                shape = (*t.shape[:at], t.shape[at] // inner, inner, *t.shape[at + 1 :])
                groups = [[k] for k in range(at)] + [[at, at + 1]] + [[k + 1] for k in range(at + 1, rank)]
                step, cells = Step.expand(t, name, groups, shape), cells.reshape(shape)
            case "broadcast":
                shape = (*t.shape, 2)
                step, cells = Step.broadcast(t, name, shape, (rank,)), np.broadcast_to(cells[..., None], shape)
            case _:
                step = Step.elementwise(t, name, "f64")
        steps.append(step)
        t = step.result
    return steps, t, cells


@settings(deadline=None, max_examples=60)
@given(chains())
def test_chains_of_steps_meet_the_cells_that_numpy_says(chain):
    steps, last, cells = chain
    dims = ", ".join(f"a{k}" for k in range(len(last.shape)))
    kept = ", ".join(f"a{k}" for k in range(0, len(last.shape), 2))
    spec = polyq.parse(f"y[{kept}] += {last.name}[{dims}]", **{last.name: (last.dtype, last.shape)})
    e = next(e for e in encodings(spec) if e.tensor.name == last.name)
    got = propagate(e, steps[::-1])
    assert got.reason is None
    source = steps[0].source if steps else last
    assert got.encoding.tensor == source
    flat = np.ravel_multi_index(met_cells(got.encoding), source.shape)
    np.testing.assert_array_equal(flat, cells.transpose([int(d[1:]) for d in e.dims]))
    strict = propagate(e, steps[::-1], single_k=True)
    assert (strict.reason is None) == _k_axes_stay(steps, e, cells)


def _k_axes_stay(steps, e, cells):
    """By brute force on cells: at each step, an axis of k goes to one axis, and nothing else with it."""
    axes = set(e.axes("k"))
    for step in steps[::-1]:
        here, there = step.result.shape, step.source.shape
        moves = [set() for _ in there]  # axes here that change each axis there
        source = np.zeros((*here, len(there)), int)
        for point in product(*map(range, step.source.shape if step.name in ("collapse", "transpose") else here)):
            at = {f"d{i}": v for i, v in enumerate(point)}
            source[tuple(w.evaluate(at) for w in step.writes)] = [r.evaluate(at) for r in step.reads]
        for axis in range(len(here)):
            changed = np.diff(source, axis=axis).reshape(-1, len(there)).any(0)
            for b in np.flatnonzero(changed):
                moves[b].add(axis)
        for axis in axes:
            held = [m for m in moves if axis in m]
            if len(held) > 1 or any(m != {axis} for m in held):
                return False
        axes = {b for b, m in enumerate(moves) if m & axes}
    return True


# ---- refusals
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Step.collapse(A, "b", [[0], [2]]), r"collapse a: f32\[2, 4096, 640\] by \[\[0\], \[2\]\]: expected each of its axes once, in order"),
        (lambda: Step.collapse(Tensor("a", "f32", (4, "m")), "b", [[0, 1]]), "an axis of m cells may only stand first in a group"),
        (lambda: Step.expand(A, "b", [[0], [1, 2], [3]], (2, 64, 63, 640)), r"the groups have \(2, 4032, 640\) elements"),
        (lambda: Step.transpose(A, "b", (0, 1)), r"transpose a: f32\[2, 4096, 640\] by \(0, 1\): expected each of its axes once"),
        (lambda: Step.broadcast(A, "b", (2, 4096, 5), (2,)), r"without the axes \(2,\) it is \(2, 4096\)"),
        (lambda: Step.of(grouped(), "q"), r"there is no such op; the spec has d, y.init, y"),
        (lambda: Step.of(grouped(), "d"), "an operand is to be named; it reads w, z, s"),
        (lambda: Step.of(grouped(), "d", "x"), "it reads no x; it reads w, z, s"),
        (lambda: Step.path(grouped(), "d", "x"), "d is not computed from it"),
        (
            lambda: Step.of(polyq.parse("t[i] = a[i] + a[i + 1] where i < 7", a=("f32", (8,))), "t"),
            "it reads a at 2 places",
        ),
        (
            lambda: Step.of(polyq.parse("t[i] = a[i]\nt[i] = 2.0 * t[i - 1] where i >= 1", a=("f32", (8,))), "t"),
            r"step 't': t\[\d\] is written again by",
        ),
        (
            lambda: propagate(matmul_on((8, 4)), Step.collapse(A, "b", [[0, 1], [2]])),
            r"joins a: f32\[2, 4096, 640\] and b: f32\[8192, 640\]; this is on t: f32\[8, 4\]",
        ),
    ],
)  # fmt: skip
def test_what_is_no_step_is_refused(make, message):
    with pytest.raises(polyq.SpecError, match=message):
        make()
