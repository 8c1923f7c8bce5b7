"""Texts of one program share a compiled object, whose source is told in the names of each."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_specs import random_specs

import polyq
from polyq.affine.canonical import canonical
from polyq.affine.naming import renamed
from polyq.affine.numbering import Form
from polyq.affine.scalar import Apply, Cast, loads
from polyq.schedule.loopnest import Assign, Guard, Loop

GROUPED = {"w": ("u8", (64, 4, 32)), "z": ("f32", (64, 4)), "s": ("f32", (64, 4)), "x": ("f32", (5, 4, 32))}
FLAT = {**GROUPED, "w": ("u8", (64, 128)), "x": ("f32", (5, 128))}
PLAIN = "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\ny[m, n] += x[m, g, j] * d[n, g, j]"
#: the same program in other words: text, tensors
TEXTS = {
    "renamed": (
        "deq[r, b, c] = (f32(q[r, b, c]) - o[r, b]) * e[r, b]\nout_[i, r] += a[i, b, c] * deq[r, b, c]",
        {"q": GROUPED["w"], "o": GROUPED["z"], "e": GROUPED["s"], "a": GROUPED["x"]},
    ),
    "operands in another order": (
        "d[n, g, j] = s[n, g] * (f32(w[n, g, j]) - z[n, g])\ny[m, n] += d[n, g, j] * x[m, g, j]",
        {name: GROUPED[name] for name in "xszw"},
    ),
    "collapsed before the sum": (
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g]) * s[n, g]\nc[n, 32*g + j] = d[n, g, j]\n"
        "v[m, 32*g + j] = x[m, g, j]\ny[m, n] += v[m, k] * c[n, k]",
        GROUPED,
    ),
    "collapsed inputs": (
        "d[n, k] = (f32(w[n, k]) - z[n, k//32]) * s[n, k//32]\ny[m, n] += x[m, k] * d[n, k]",
        FLAT,
    ),
    "in one statement": (
        "y[m, n] += x[m, k] * ((f32(w[n, k]) - z[n, k//32]) * s[n, k//32])",
        FLAT,
    ),
    "expanded, with dims of extent 1": (
        "d[n, g, j] = (f32(w[n, g, j]) - z[n, g, 0]) * s[n, g, 0]\nt[m, n] += x[0, m, g, j] * d[n, g, j]\n"
        "y[b, c, m, n] = t[m, n] where b < 1, c < 1",
        {"w": GROUPED["w"], "z": ("f32", (64, 4, 1)), "s": ("f32", (64, 4, 1)), "x": ("f32", (1, 5, 4, 32))},
    ),
}
#: one text is the same program after inlining alone: its bits are the same in the order of the program, its key is not
SAME_FORM = [name for name in TEXTS if name != "in one statement"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYQ_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def of(name):
    text, tensors = TEXTS[name]
    return polyq.parse(text, **tensors)


def given_to(spec, arrays):
    """Return inputs by position in memory: those of ``arrays``, told by their number of elements and dtype."""
    found, left = {}, dict(arrays)
    for t in spec.inputs:
        name = next(n for n in left if n == t.name or (t.name not in arrays and ORIGIN.get(t.name) == n))
        found[t.name] = left.pop(name).reshape([e.const for e in t.extents])
    return found


ORIGIN = {"q": "w", "o": "z", "e": "s", "a": "x"}


@pytest.fixture(scope="module")
def arrays():
    return polyq.affine.arrays.random_arrays(polyq.parse(PLAIN, **GROUPED), {}, 1)


def executed_loads(kernel, tensor):
    """Count the loads of a tensor that one call executes, by running the loops."""

    def run(block, known):
        total = 0
        for node in block:
            match node:
                case Loop(var, lower, upper, _, body):
                    low = max(e.evaluate(known) for e in lower)
                    high = min(e.evaluate(known) for e in upper)
                    total += sum(run(body, {**known, var: i}) for i in range(low, high))
                case Guard(constraints, body):
                    values = [(c.expr.evaluate(known), c.equality) for c in constraints]
                    total += run(body, known) if all(v == 0 if equal else v >= 0 for v, equal in values) else 0
                case Assign():
                    total += sum(load.tensor == tensor for load in loads(node.value))
                case _:
                    total += run(node.body, known)
        return total

    return run(kernel.schedule.nest.body, {})


# ---- one object
@pytest.mark.parametrize("numerics", ["strict", "reassoc"])
def test_texts_of_one_program_share_one_compiled_object(folder, arrays, numerics):
    first = polyq.build(polyq.parse(PLAIN, **GROUPED), numerics=numerics)
    expected = first(**arrays)
    kept = {p.name for p in folder.glob("*.so")}
    for name in SAME_FORM:
        spec = of(name)
        kernel = polyq.build(spec, numerics=numerics)
        got = kernel(**given_to(spec, arrays))
        assert got.shape == tuple(e.const for e in spec.outputs[0].extents), name
        assert np.array_equal(got.reshape(expected.shape).view(np.uint32), expected.view(np.uint32)), name
        assert kernel.certificate.ok, name
    assert {p.name for p in folder.glob("*.so")} == kept
    if numerics == "strict":
        oracle = polyq.interpret(polyq.parse(PLAIN, **GROUPED), **arrays)
        assert np.array_equal(oracle.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("numerics", ["strict", "reassoc"])
def test_a_reshape_changes_neither_schedule_nor_loads_of_scales(folder, arrays, numerics):
    plain = polyq.build(polyq.parse(PLAIN, **GROUPED), numerics=numerics)
    counts = {t: executed_loads(plain, t) for t in "szwx"}
    assert min(counts.values()) > 0
    for name in TEXTS if numerics == "strict" else SAME_FORM:
        spec = of(name)
        kernel = polyq.build(spec, numerics=numerics)
        back = {own: t for own, t in ORIGIN.items() if own in spec.input_names} or {t: t for t in "szwx"}
        assert {t: executed_loads(kernel, own) for own, t in back.items()} == counts, name
        got = kernel(**given_to(spec, arrays)).reshape(5, 64)
        assert np.array_equal(got.view(np.uint32), plain(**arrays).view(np.uint32)), name
    directives = {
        name: [d.transform for d in polyq.build(of(name), numerics=numerics).schedule.directives] for name in SAME_FORM
    }
    for name, made in directives.items():
        assert [t for t in made if t != "canonical"] == [
            d.transform for d in plain.schedule.directives if d.transform != "canonical"
        ], name


def test_the_source_is_in_the_names_of_each_text(folder):
    kernel = polyq.build(of("renamed"), target="c")
    assert polyq.build(polyq.parse(PLAIN, **GROUPED), target="c").source != kernel.source
    assert not re.search(
        r"T\d+T|I\d+I|P\d+P|N0N", kernel.source + kernel.explain() + str(kernel.schedule) + str(kernel.certificate.nest)
    )
    for name in ("q", "o", "e", "a", "out_"):
        assert re.search(rf"\bconst {name} = ", kernel.source), name
    assert "deq: computed where it is read" in kernel.explain()
    compiled = next(p for p in folder.glob("*.c") if "T0T" in p.read_text()).read_text()
    assert len(compiled.splitlines()) == len(kernel.source.splitlines())


def test_the_source_in_other_names_compiles_to_the_same_machine_code(folder, tmp_path):
    kernel = polyq.build(of("renamed"), target="c")
    (compiled,) = (p for p in folder.glob("*.c") if "T0T" in p.read_text())
    code = []
    for name, text in (("a", compiled.read_text()), ("b", kernel.source)):
        (tmp_path / f"{name}.c").write_text(
            text.partition("*/")[2].replace("kernel_N0N(", "f(").replace("kernel_out_(", "f(")
        )
        subprocess.run(["gcc", "-O2", "-S", "-o", tmp_path / f"{name}.s", tmp_path / f"{name}.c"], check=True)
        code.append([line for line in (tmp_path / f"{name}.s").read_text().splitlines() if ".file" not in line])
    assert code[0] == code[1]


def test_names_that_c_or_the_module_uses_stay_apart(folder):
    names = {"a": "runtime", "b": "work", "c": "x_packed"}
    text = "double_[first, count] += a[first, int_] * b[int_, count] + c[first]"
    for old, new in names.items():
        text = re.sub(rf"\b{old}\b", new, text)
    shapes = {"a": (6, 40), "b": (40, 24), "c": (6,)}
    spec = polyq.parse(text, **{names[n]: ("f32", shape) for n, shape in shapes.items()})
    arrays = polyq.affine.arrays.random_arrays(spec, {}, 0)
    kernel = polyq.build(spec, numerics="strict")
    assert np.array_equal(kernel(**arrays), polyq.interpret(spec, **arrays))
    kernel.save(folder / "export")  # compiles the source in these names


def test_a_text_that_was_built_is_taken_from_the_cache_without_its_form(folder):
    polyq.build(of("collapsed inputs"), target="c", numerics="strict")
    code = (
        "import sys, polyq\n"
        f"spec = polyq.parse({TEXTS['collapsed inputs'][0]!r}, **{FLAT!r})\n"
        "before = set(sys.modules); polyq.build(spec, target='c', numerics='strict')\n"
        "print(sorted(m for m in set(sys.modules) - before if m in ('polyq.affine.numbering', 'polyq.schedule.auto', 'cgen')))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


# ---- other programs
DIFFERENT = {
    "another order of the sum": (
        PLAIN.replace("x[m, g, j] * d[n, g, j]", "h[j] * x[m, g, j] * d[n, g, j]"),
        {**GROUPED, "h": ("f32", (32,))},
    ),
    "scale and zero point swapped": (
        PLAIN.replace("z[n, g]", "Z").replace("s[n, g]", "z[n, g]").replace("Z", "s[n, g]"),
        None,
    ),
    "another group": (
        PLAIN,
        {"w": ("u8", (64, 8, 16)), "z": ("f32", (64, 8)), "s": ("f32", (64, 8)), "x": ("f32", (5, 8, 16))},
    ),
    "signed codes": (PLAIN, {**GROUPED, "w": ("i8", (64, 4, 32))}),
    "a difference turned round": (PLAIN.replace("f32(w[n, g, j]) - z[n, g]", "z[n, g] - f32(w[n, g, j])"), None),
    "a start value": ("y[m, n] = 2.0 where m < 5, n < 64\n" + PLAIN, None),
    "symbolic rows": (PLAIN, {**GROUPED, "x": ("f32", ("m", 4, 32))}),
}


def test_other_programs_have_other_keys():
    forms = [Form.of(polyq.parse(PLAIN, **GROUPED)).spec]
    forms += [Form.of(polyq.parse(text, **(tensors or GROUPED))).spec for text, tensors in DIFFERENT.values()]
    swapped = Form.of(polyq.parse(DIFFERENT["scale and zero point swapped"][0], **GROUPED)).spec
    assert swapped == forms[0]  # only the names changed places
    assert len(set(forms)) == len(forms) - 1


def test_which_array_is_which_is_a_matter_of_names(folder, arrays):
    """Two programs that share an object, with inputs of one shape in each other's place."""
    one = polyq.parse(PLAIN, **GROUPED)
    two = polyq.parse(DIFFERENT["scale and zero point swapped"][0], **GROUPED)
    for spec in (one, two):
        np.testing.assert_array_equal(polyq.build(spec, numerics="strict")(**arrays), polyq.interpret(spec, **arrays))
        bound = polyq.build(spec).bind(w=arrays["w"], z=arrays["z"], s=arrays["s"])
        np.testing.assert_allclose(bound(x=arrays["x"]), polyq.interpret(spec, **arrays), rtol=1e-4, atol=1e-2)
    assert len([p for p in folder.glob("*.c") if "strict" in p.read_text()[:40]]) == 1


# ---- properties
def swapped(node, rnd):
    match node:
        case Apply(fn, args, _):
            args = tuple(swapped(a, rnd) for a in args)
            return node.__class__(fn, args[::-1] if fn in ("add", "mul") and rnd.random() < 0.5 else args, node.dtype)
        case Cast(arg, dtype):
            return Cast(swapped(arg, rnd), dtype)
        case _:
            return node


def in_other_names(spec):
    """Return the program with every dim, op and tensor renamed, in another alphabetical order."""
    names = {t.name: f"n{99 - k}" for k, t in enumerate(spec.all_tensors)}
    ops = []
    for k, op in enumerate(spec.ops):
        mine = {**names, **{d: f"d{9 - i}" for i, d in enumerate(op.dims)}, op.name: f"o{99 - k}"}
        index = renamed(op, lambda text, mine=mine: mine.get(text, text))
        ops.append(
            index.__class__(
                f"o{99 - k}",
                *(getattr(index, f) for f in ("dims", "extents")),
                names[op.target],
                *(getattr(index, f) for f in ("index", "body", "reduce", "where")),
            )
        )
    made = renamed(spec.with_ops(()), lambda text: names.get(text, text))
    return made.with_ops(tuple(ops))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_specs(), st.randoms(use_true_random=False))
def test_the_form_depends_on_neither_names_nor_the_order_of_operands(program, rnd):
    spec = program.spec()
    form = Form.of(spec)
    other = in_other_names(spec)
    other = other.with_ops(
        tuple(
            op.__class__(op.name, op.dims, op.extents, op.target, op.index, swapped(op.body, rnd), op.reduce, op.where)
            for op in other.ops
        )
    )
    again = Form.of(other)
    assert (form is None) == (again is None)
    if form is not None:
        assert form.spec == again.spec
        assert Form.of(canonical(spec)).spec == form.spec
        assert Form.of(form.named).spec == form.spec
        assert set(form.named.input_names) == set(spec.input_names)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_specs(), st.integers(0, 3))
def test_the_named_form_computes_the_same_bits(program, seed):
    spec, arrays = program.spec(), program.arrays(seed)
    form = Form.of(spec)
    if form is None:
        return
    expected = polyq.interpret(spec, **arrays)
    stored = {t.name: arrays[t.name].reshape([e.const for e in t.extents]) for t in form.named.inputs}
    got = polyq.interpret(form.named, **stored)
    pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
    for a, b in pairs:
        assert np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
