"""Random small specs that are valid by construction, for property tests of everything that takes a spec.

One to three statements over one to four dims of extent 1 to 6: strided, shifted, reversed, summed, floored and wrapped
subscripts, reductions with repeated cells, ``where`` constraints, reads of earlier results, recurrences; f32 and i32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from hypothesis import strategies as st

from polyq.affine.arrays import random_arrays
from polyq.affine.notation import parse
from polyq.affine.spec import Spec

__all__ = ["RandomSpec", "random_spec", "random_specs"]

DIMS = ("i", "j", "k", "l")


@dataclass(frozen=True, slots=True)
class RandomSpec:
    """The text of a spec and the declarations of its inputs."""

    text: str
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    def spec(self) -> Spec:
        return parse(self.text, **{name: (dtype, shape) for name, dtype, shape in self.tensors})

    def arrays(self, seed: int = 0) -> dict[str, np.ndarray]:
        return random_arrays(self.spec(), {}, seed)


class _Drawn:
    """Choices that hypothesis makes."""

    def __init__(self, draw: Callable) -> None:
        self.draw = draw

    def one_of(self, *values):
        return self.draw(st.sampled_from(values))

    def flag(self) -> bool:
        return self.draw(st.booleans())

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def order(self, values: list[str]) -> list[str]:
        return self.draw(st.permutations(values))


class _Rolled:
    """The same choices by a seeded generator: for tools that run outside of tests."""

    def __init__(self, r: Random) -> None:
        self.r = r

    def one_of(self, *values):
        return self.r.choice(values)

    def flag(self) -> bool:
        return self.r.random() < 0.5

    def number(self, low: int, high: int) -> int:
        return self.r.randint(low, high)

    def order(self, values: list[str]) -> list[str]:
        return self.r.sample(values, len(values))


class _Builder:
    """The statements so far, and which of their results may be read everywhere; extents are at most ``most``."""

    def __init__(self, choices: _Drawn | _Rolled, most: int = 6) -> None:
        self.choices, self.one_of, self.most = choices, choices.one_of, most
        self.lines: list[str] = []
        self.inputs: list[tuple[str, str, tuple[int, ...]]] = []
        self.readable: dict[str, tuple[str, tuple[int, ...]]] = {}

    # ---- subscripts
    def subscript(self, sizes: dict[str, int]) -> tuple[str, int]:
        """Return a non-negative subscript of the dims and one more than its greatest value."""
        d = self.one_of(*sizes)
        n = sizes[d]
        form = self.one_of("plain", "plain", "plain", "stride", "reverse", "sum", "floor", "wrap", "constant")
        if form == "stride":
            step, shift = self.one_of(2, 3), self.one_of(0, 1)
            return f"{step}*{d} + {shift}", step * (n - 1) + shift + 1
        if form == "reverse":
            return f"{n - 1} - {d}", n
        if form == "sum":
            e, step = self.one_of(*sizes), self.one_of(1, 2)
            return f"{d} + {step}*{e}", n + step * (sizes[e] - 1)
        if form == "floor":
            by = self.one_of(2, 3)
            return f"{d}//{by}", (n - 1) // by + 1
        if form == "wrap":
            by = self.one_of(2, 3)
            return f"({d} + 1) % {by}", max((v + 1) % by for v in range(n)) + 1
        return ("1", 2) if form == "constant" else (d, n)

    def load(self, sizes: dict[str, int], dtype: str) -> str:
        """Return a load, cast to ``dtype``, of a new input or of an earlier result."""
        if self.readable and self.choices.flag():
            name = self.one_of(*self.readable)
            source, shape = self.readable[name]
            index = [self.within(sizes, n) for n in shape]
        else:
            name, source = f"a{len(self.inputs)}", self.one_of("f32", "f32", "i32")
            subscripts = [self.subscript(sizes) for _ in range(self.one_of(0, 1, 1, 2, 2, 3))]
            index = [text for text, _ in subscripts]
            self.inputs.append((name, source, tuple(end for _, end in subscripts)))
        element = f"{name}[{', '.join(index)}]" if index else name
        return element if source == dtype else f"{dtype}({element})"

    def within(self, sizes: dict[str, int], extent: int) -> str:
        text, end = self.subscript(sizes)
        return text if end <= extent else f"({text}) % {extent}" if extent > 1 else "0"

    # ---- bodies
    def body(self, sizes: dict[str, int], dtype: str, depth: int = 2) -> str:
        form = self.one_of("load", "add", "sub", "mul", "min", "max", "select", "index", "literal") if depth else "load"
        if form == "load":
            return self.load(sizes, dtype)
        if form == "index":
            return f"{dtype}({self.subscript(sizes)[0]})"
        a = self.body(sizes, dtype, depth - 1)
        if form == "literal":
            return f"({a} * {self.one_of('2.0', '0.5', '-3.0')})" if dtype == "f32" else f"({a} - {self.one_of('7', '1')})"
        b = self.body(sizes, dtype, depth - 1)
        if form == "select":
            return f"select({a} < {b}, {b}, {self.load(sizes, dtype)})"
        sign = {"add": "+", "sub": "-", "mul": "*"}.get(form)
        return f"({a} {sign} {b})" if sign else f"{form}({a}, {b})"

    # ---- statements
    def statement(self) -> None:
        dims = DIMS[: self.one_of(1, 2, 2, 3, 3, 4)]
        sizes = {d: self.choices.number(1, self.most if len(dims) < 4 else (self.most + 1) // 2) for d in dims}
        dtype = self.one_of("f32", "f32", "i32")
        name = f"t{len(self.lines)}"
        body = self.body(sizes, dtype)
        wheres = [f"{d} < {n}" for d, n in sizes.items()]
        cut = self.one_of(None, None, None, "triangle", "band")
        if cut == "triangle":
            wheres.append(f"{dims[0]} <= {dims[-1]}" if len(dims) > 1 else f"{dims[0]} >= 1")
        elif cut == "band":
            wheres.append(f"{' + '.join(dims)} < {self.one_of(2, 4, 6)}")
        if self.choices.flag():
            self.reduction(name, dtype, sizes, body, wheres, cut)
        else:
            self.assignment(name, dtype, sizes, body, wheres, cut)

    def reduction(self, name: str, dtype: str, sizes: dict[str, int], body: str, wheres: list[str], cut: str | None) -> None:
        operator = self.one_of("+", "+", "+", "min", "max", "*")
        count = self.one_of(0, 1, 1, 2)
        subscripts = [self.subscript(sizes) for _ in range(count)]
        left = f"{name}[{', '.join(text for text, _ in subscripts)}]" if subscripts else name
        subscripted = set(re.findall(r"[ijkl]", " ".join(re.findall(r"\[[^]]*\]", left + body))))
        rest = [d for d in sizes if d not in subscripted]
        if rest:  # a name in no subscript would be a parameter
            self.inputs.append((f"a{len(self.inputs)}", dtype, tuple(sizes[d] for d in rest)))
            body = f"({body} + {self.inputs[-1][0]}[{', '.join(rest)}])"
        self.lines.append(f"{left} {operator}= {body} where {', '.join(wheres)}")
        if cut is None:  # a constraint may keep the shape smaller than the subscripts' ends
            self.readable[name] = (dtype, tuple(end for _, end in subscripts))

    def assignment(self, name: str, dtype: str, sizes: dict[str, int], body: str, wheres: list[str], cut: str | None) -> None:
        order = self.choices.order(list(sizes))
        dense = self.choices.flag()
        index = [d if dense else self.one_of(d, f"{sizes[d] - 1} - {d}", f"2*{d}", f"{d} + 1") for d in order]
        self.lines.append(f"{name}[{', '.join(index)}] = {body} where {', '.join(wheres)}")
        if cut is not None or not dense:
            return
        self.readable[name] = (dtype, tuple(sizes[d] for d in order))
        if self.one_of(True, False, False):
            d = self.one_of(*order)
            earlier = ", ".join(f"{x} - 1" if x == d else x for x in order)
            here = ", ".join(order)
            half = f"{name}[{earlier}] * 0.5" if dtype == "f32" else f"{name}[{earlier}] // 2"
            self.lines.append(f"{name}[{here}] = {half} + {name}[{here}] where {d} >= 1, {', '.join(wheres)}")


@st.composite
def random_specs(draw: Callable, statements: int = 3) -> RandomSpec:
    """Draw a valid spec of up to ``statements`` statements (a recurrence counts with what it continues)."""
    builder = _Builder(_Drawn(draw))
    for _ in range(draw(st.integers(1, statements))):
        builder.statement()
    return RandomSpec("\n".join(builder.lines), tuple(builder.inputs))


def random_spec(r: Random, statements: int = 3, most: int = 6) -> RandomSpec:
    """Return such a spec that only the state of ``r`` determines, of extents up to ``most``."""
    builder = _Builder(_Rolled(r), most)
    for _ in range(r.randint(1, statements)):
        builder.statement()
    return RandomSpec("\n".join(builder.lines), tuple(builder.inputs))
