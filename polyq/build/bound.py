"""A kernel with some of its inputs bound: checked, and packed where that pays, once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyq.affine.arrays import Array
from polyq.affine.errors import ArgumentError, BuildError
from polyq.affine.names import meant
from polyq.affine.spec import Tensor
from polyq.build.arguments import on_own_line
from polyq.build.prepared import Packing, distinct_bytes, rejoined

if TYPE_CHECKING:
    from polyq.build.kernel import Kernel
    from polyq.build.payoff import Payoff

__all__ = ["Bound"]


class Bound:
    """A kernel with a snapshot of some of its inputs; call it with the others, by name or position.

    ``kernel`` is the one that runs: a variant for what is bound, if there is one. ``packing`` says what it cost to pack
    the inputs, ``None`` where they are held as they came.
    """

    def __init__(self, kernel: Kernel, held: dict[str, Array], packing: Packing | None = None) -> None:
        self.kernel, self.packing = kernel, packing
        self._held = held
        self._names = kernel.executable.spec.input_names
        self._free = tuple(at for at, name in enumerate(self._names) if name not in held)
        self._template: list[object] = [held.get(name) for name in self._names]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a call still takes, in order."""
        return tuple(self.kernel.spec.tensor(self._names[at]) for at in self._free)

    @property
    def held(self) -> Mapping[str, Array]:
        """The arrays of the snapshot by name: packed tensors in place of the inputs that they replace."""
        return self._held

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the layer to a file that :func:`polyq.load` maps into memory; return its path.

        The file appears whole or not at all. It holds the program, the options and the arrays, and no code;
        docs/saved-layers.md describes it.
        """
        from polyq.build.saved import save

        return save(self, path)

    def payoff(self, *, seconds: float = 0.5, repeats: int | None = None, **params: int) -> Payoff:
        """Measure after how many calls packing has paid, for these parameters (``layer.payoff(m=1).calls``).

        Both kernels, the one that packs and the one that does not, run on cold random data, as in
        :meth:`Kernel.benchmark`; the cost is that of ``packing``.
        """
        from polyq.build.payoff import payoff

        return payoff(self, seconds=seconds, repeats=repeats, params=params)

    @property
    def nbytes(self) -> int:
        """The bytes that the snapshot holds."""
        return distinct_bytes(self._held.values())

    def __call__(self, /, *args: object, out: object = None, **named: object) -> Any:
        """Compute the outputs from the remaining inputs; ``out`` as for the kernel."""
        kernel = self.kernel
        values = self._values(args, named)
        if values is None:
            return kernel.executable.call((), self._merged(args, named), out, kernel.threads)
        return kernel.executable.call(values, {}, out, kernel.threads)

    def _values(self, args: Sequence[object], named: Mapping[str, object]) -> list[object] | None:
        """Return all inputs in order, or ``None`` where what is given is not exactly what is missing."""
        if len(args) + len(named) != len(self._free):
            return None
        values = self._template.copy()
        for at, value in zip(self._free, args):  # noqa: B905 - the named ones follow
            values[at] = value
        names = self._names
        for at in self._free[len(args) :]:
            if names[at] not in named:
                return None
            values[at] = named[names[at]]
        return values

    def _merged(self, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        """Return all arguments by name; whatever is given twice or too much is refused."""
        names = tuple(self._names[at] for at in self._free)
        if len(args) > len(names):
            raise ArgumentError(
                f"{len(args)} arguments given by position: expected at most {len(names)} "
                f"({', '.join(names) or 'none'}); bound are {', '.join(self._bound)}"
            )
        again = [name for name in named if name in {*self._names, *self.kernel.spec.input_names} - {*names}]
        if again:
            raise ArgumentError(f"{', '.join(again)}: bound already; bind anew for other values")
        twice = [name for name in names[: len(args)] if name in named]
        if twice:
            raise ArgumentError(f"{', '.join(twice)}: given by position and by name")
        given = {**dict(zip(names, args, strict=False)), **named}
        missing = [t for t in self.inputs if t.name not in given]
        if missing:
            hints = (meant(name, (t.name for t in missing)) for name in named if name not in names)
            raise ArgumentError(
                f"missing input {', '.join(t.name for t in missing)}: expected {', '.join(map(str, missing))}; "
                f"bound are {', '.join(self._bound) or 'none'}{''.join(hints)}"
            )
        return {**self._held, **given}

    @property
    def kept(self) -> dict[str, Array]:
        """The bound inputs that are held as they came, by name; those that are packed are not among them."""
        return {name: self._held[name] for name in self._bound if name in self._held}

    @property
    def bound_names(self) -> tuple[str, ...]:
        """The inputs that were bound, in order."""
        return tuple(self._bound)

    @property
    def _bound(self) -> list[str]:
        free = {self._names[at] for at in self._free}
        return [name for name in self.kernel.spec.input_names if name not in free]

    def _said(self) -> str:
        held = ", ".join(f"{name} {array.nbytes} B" for name, array in self._held.items())
        packed = f"{', '.join(self._bound)}, packed as " if list(self._held) != self._bound else ""
        return f"{packed}{held}"

    def __repr__(self) -> str:
        return str(self.kernel.card(self._said()))

    def _repr_html_(self) -> str:
        return self.kernel.card(self._said()).page(self.kernel.explain())

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound_again, (self.kernel, self._held, self.kernel.layout, self.packing)


def _bound_again(kernel: Kernel, held: dict[str, Array], layout: str, packing: Packing | None) -> Bound:
    """Return a bound callable from another process, its arrays on cache lines of their own."""
    if kernel.layout != layout:
        raise BuildError(
            f"kernel {kernel.spec.name}: what was bound is packed as another CPU or another version of polyq reads it; "
            "bind the original arrays here"
        )
    return Bound(kernel, rejoined(kernel.plan, {name: on_own_line(a) for name, a in held.items()}), packing)
