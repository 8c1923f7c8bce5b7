"""Random programs in the family of quantized contractions: what is bound, and how large its rows are, is drawn too.

Data are small integers and powers of two, so that every sum is exact in whatever order it is computed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

import polyq
from polyq.affine.arrays import Array, shape_of, storage_shape
from polyq.affine.dtypes import info, is_int, numpy_dtype
from polyq.affine.spec import Spec, Tensor

__all__ = ["BoundProgram", "bound_program", "exact_arrays", "rough_arrays"]

EXTENTS = (1, 2, 7, 8, 16, 31, 32, 33, 64, 100)
CODES = ("u8", "i8", "u4", "i4", "u2", "i2", "f32", "f16", "bf16", "f64")


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program, its inputs, which of them are bound, and three values of its parameter ``m`` if it has one."""

    text: str
    tensors: tuple[tuple[str, str, tuple[int | str, ...]], ...]
    bound: tuple[str, ...]
    rows: tuple[int, ...]

    def spec(self) -> Spec:
        return polyq.parse(self.text, **{name: (dtype, shape) for name, dtype, shape in self.tensors})


class _Draw:
    """Extents of dims, and the inputs so far."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.real = r.choice(("f32", "f32", "f32", "f64"))
        self.group = r.choice((4, 8, 16, 32))
        self.sizes: dict[str, int | str] = {
            "b": r.choice((1, 2, 3)), "n": r.choice(EXTENTS), "g": r.choice((1, 2, 3)), "j": r.choice(EXTENTS),
            "k": r.choice((*EXTENTS, self.group * r.choice((1, 2, 4)))), "m": r.choice(("m", "m", "m", 1, 5)),
        }  # fmt: skip
        self.tensors: dict[str, tuple[str, tuple[int | str, ...]]] = {}

    def load(self, name: str, dtype: str, dims: list[str]) -> str:
        """Return a read of a new input along ``dims`` in some order, cast to the type of the sums."""
        dims = self.r.sample(dims, len(dims))
        self.tensors[name] = (dtype, tuple(self.extent(d) for d in dims))
        element = f"{name}[{', '.join(dims)}]"
        return element if dtype == self.real else f"{self.real}({element})"

    def extent(self, dim: str) -> int | str:
        if "//" not in dim:
            return self.sizes[dim]
        whole = self.sizes[dim.split(" ")[0]]
        assert isinstance(whole, int)
        return -(-whole // self.group)


def bound_program(seed: int) -> BoundProgram:
    """Return a program that only ``seed`` determines."""
    r = random.Random(seed)
    of = _Draw(r)
    inner = r.choice((["k"], ["k"], ["g", "j"]))
    outer = r.choice((["m", "n"], ["m", "n"], ["m", "n"], ["b", "m", "n"], ["n"], ["m"]))
    batched = ["b"] if "b" in outer and r.random() < 0.5 else []
    code = r.choice(CODES)
    w = of.load("w", code, [*batched, *(d for d in outer if d == "n"), *inner])
    coarse = [f"k // {of.group}" if inner == ["k"] else "g"]
    side = [d for d in outer if d == "n"] + (coarse if r.random() < 0.7 else []) or coarse
    scaled = r.choice(("no", "scale", "zero", "both", "both"))
    weight = w
    if scaled in ("zero", "both"):
        weight = f"({weight} - {of.load('z', r.choice((of.real, 'f16', 'u8', 'u4')), side)})"
    if scaled in ("scale", "both"):
        weight = f"{weight} * {of.load('s', r.choice((of.real, 'f16', 'bf16')), side)}"
    if r.random() < 0.1:
        weight = f"{weight} * {w}"  # the same constant twice
    x = of.load("x", r.choice((of.real, of.real, "f16", "bf16", "i8")), [*(d for d in outer if d != "n"), *inner])
    lines: list[str] = []
    if r.random() < 0.4 and scaled != "no":
        own = [*batched, *(["n"] if "n" in outer else []), *inner]
        lines.append(f"d[{', '.join(own)}] = {weight}")
        weight = f"d[{', '.join(own)}]"
    third = (
        f" * {of.load('v', of.real, r.choice((inner, outer, ['n'] if 'n' in outer else inner)))}"
        if r.random() < 0.2
        else ""
    )
    where = r.choice(("", "", "", "", "", f"{inner[-1]} <= {outer[-1]}", f"{inner[-1]} >= 2", f"{outer[-1]} >= 1",
                      f"{inner[0]} < {outer[-1]} + 3"))  # fmt: skip
    left = r.sample(outer, len(outer)) if r.random() < 0.2 else outer
    cell = ", ".join(left)
    if r.random() < 0.15 and not where:  # what a call gives is updated in place
        of.tensors["y"] = (of.real, tuple(of.sizes[d] for d in left))
    lines.append(f"y[{cell}] += {x} * {weight}{third}" + (f" where {where}" if where else ""))
    _more(r, of, lines, cell, left, outer, inner, w, x)
    names = list(of.tensors)
    bound = tuple(n for n in names if n not in ("x", "y") and r.random() < 0.75) or ("w",)
    bound += ("x",) if r.random() < 0.08 else ()
    rows = tuple(r.choice(c) for c in ((0, 1, 2, 3), (4, 5, 7, 16, 31), (33, 40, 48, 50)))
    order = r.sample(names, len(names))
    return BoundProgram(
        "\n".join(lines), tuple((n, *of.tensors[n]) for n in order), bound,
        r.sample(rows, 3) if any("m" in s for _, s in of.tensors.values()) else (1,),
    )  # fmt: skip


def _more(
    r: random.Random,
    of: _Draw,
    lines: list[str],
    cell: str,
    left: list[str],
    outer: list[str],
    inner: list[str],
    w: str,
    x: str,
) -> None:
    """Add what is read twice, and an epilogue."""
    if r.random() < 0.2:
        total = r.choice((f"t[{inner[0]}] += {w}", f"t += {w}", f"t[{', '.join(outer)}] += {x} * {w}"))
        lines.append(total)
    form = r.choice(("no", "no", "relu", "half", "residual", "scaled"))
    if form == "relu":
        lines.append(f"o[{cell}] = max(y[{cell}] + {of.load('c', of.real, [left[-1]])}, 0)")
    elif form == "half":
        lines.append(f"o[{cell}] = {r.choice(('f16', 'bf16', 'i32'))}(y[{cell}])")
    elif form == "residual":
        of.tensors["r"] = (of.real, tuple(of.sizes[d] for d in left))
        lines.append(f"r[{cell}] += y[{cell}]")
    elif form == "scaled":
        lines.append(f"o[{cell}] = select(y[{cell}] < 0, {of.load('c', of.real, left)} * y[{cell}], y[{cell}])")


def exact_arrays(spec: Spec, params: dict[str, int], seed: int) -> dict[str, Array]:
    """Return inputs in storage form: codes of the whole range, else integers from -3 to 3 and, for scales, powers of 2."""
    return {t.name: _exact(t, params, np.random.default_rng([seed, i])) for i, t in enumerate(spec.inputs)}


def _exact(t: Tensor, params: dict[str, int], r: np.random.Generator) -> Array:
    shape = storage_shape(t, params)
    if is_int(t.dtype):
        kind = numpy_dtype(t.dtype)
        if t.name == "x":
            return r.integers(-3, 4, shape).astype(kind)
        return r.integers(0, 256, shape).astype(np.uint8).view(kind)
    values = 2.0 ** r.integers(-1, 2, shape) if t.name in ("s", "v") else r.integers(-3, 4, shape).astype(float)
    return _as(t.dtype, values)


def rough_arrays(spec: Spec, params: dict[str, int], seed: int) -> dict[str, Array]:
    """Return inputs in storage form with fractions that no order of a sum keeps."""
    made = exact_arrays(spec, params, seed)
    for i, t in enumerate(spec.inputs):
        if not is_int(t.dtype):
            made[t.name] = _as(t.dtype, np.random.default_rng([seed, i, 1]).standard_normal(shape_of(t, params)))
    return made


def _as(dtype: str, values: Array) -> Array:
    if dtype == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert info(dtype).bits >= 16
    return values.astype(numpy_dtype(dtype))
