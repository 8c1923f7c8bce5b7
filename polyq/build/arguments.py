"""What a caller gives: inputs checked and made dense, parameters taken from their shapes.

The common call (numpy arrays of the right dtype, dense and aligned) takes a short way through :class:`Signature`; every
other one goes through :func:`polyq.affine.arrays.take_arguments`, which converts or explains.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from polyq.affine.arrays import (
    Array,
    bind_params,
    packed_extent,
    storage_shape,
    take_arguments,
    to_storage,
)
from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.errors import ArgumentError
from polyq.affine.expr import Affine, Param
from polyq.affine.spec import Spec, Tensor

__all__ = [
    "DENSE", "Params", "Signature", "aligned_copy", "aligned_zeros", "bound_params", "dense_storage", "on_own_line",
]  # fmt: skip

_log = logging.getLogger("polyq")

Params = tuple[int, ...]


#: numpy's flag bits C_CONTIGUOUS and ALIGNED (``numpy/ndarraytypes.h``): one number is read faster than two properties
DENSE = 0x0001 | 0x0100
_ndarray = np.ndarray


class _Input:
    """What the short way checks of one input: its dtype, and each axis a number or the place of a parameter."""

    __slots__ = ("axes", "determines", "dtype", "shape")

    def __init__(self, tensor: Tensor, params: Sequence[str]) -> None:
        self.dtype = numpy_dtype(tensor.dtype)
        packed = info(tensor.dtype).packed
        extents = tensor.extents
        self.shape = storage_shape(tensor, {}) if all(e.is_constant for e in extents) else None
        #: an axis is (extent, -1) or (0, position of its parameter); None where the short way cannot serve
        self.axes: list[tuple[int, int]] | None = []
        self.determines: list[tuple[int, int]] = []
        for axis, extent in enumerate(extents):
            name = _parameter(extent)
            last = packed and axis == len(extents) - 1
            if extent.is_constant:
                constant = packed_extent(tensor.dtype, extent.const) if last else extent.const
                self.axes.append((constant, -1))
            elif name is None or last:
                self.axes = None
                return
            else:
                self.axes.append((0, params.index(name)))
                self.determines.append((axis, params.index(name)))


def _fits(shape: tuple[int, ...], wanted: _Input, params: list[int]) -> bool:
    """Whether a shape agrees with ``params``; those that are unknown (-1) and stand alone on an axis are set."""
    axes = wanted.axes
    if axes is None or len(shape) != len(axes):
        return False
    for axis, position in wanted.determines:
        if params[position] < 0:
            params[position] = shape[axis]
    for extent, (constant, position) in zip(shape, axes):  # noqa: B905 - hot, lengths were compared
        if extent != (constant if position < 0 else params[position]):
            return False
    return True


def _parameter(extent: Affine) -> str | None:
    if extent.const == 0 and len(extent.terms) == 1:
        atom, coefficient = extent.terms[0]
        if coefficient == 1 and isinstance(atom, Param):
            return atom.name
    return None


class Signature:
    """The arguments of a kernel, compiled from its spec. ``names`` are its inputs in order."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.names = spec.input_names
        self.params = spec.params
        inputs = [_Input(t, self.params) for t in spec.inputs]
        determined = {p for i in inputs for _, p in i.determines}
        # the short way serves where shapes alone give all parameters, entry by entry
        self._short = all(i.axes is not None for i in inputs) and len(determined) == len(self.params)
        self._checks = [(i.dtype, i.shape, i) for i in inputs]
        self._unknown: list[int] = [-1] * len(self.params)

    def take(self, args: Sequence[object], named: Mapping[str, object]) -> tuple[list[Array], Params]:
        """Return the storage arrays of all inputs, dense and aligned, and the parameters in order of :attr:`params`.

        Raises :class:`ArgumentError` or :class:`ArgumentTypeError`, naming the argument, what was expected, what came.
        """
        if self._short:
            values = args if not named else self._ordered(args, named)
            if values is not None and len(values) == len(self._checks):
                params = self._check(values)
                if params is not None:
                    return values, params  # type: ignore[return-value] # _check saw that they are arrays
        return self._convert(args, named)

    def _ordered(self, args: Sequence[object], named: Mapping[str, object]) -> list[object] | None:
        if len(args) + len(named) != len(self.names):
            return None
        try:
            return [*args, *[named[name] for name in self.names[len(args) :]]]
        except KeyError:
            return None

    def _check(self, values: Sequence[Any]) -> Params | None:
        """Return the parameters if all values are arrays that a kernel can read as they are, else ``None``."""
        params = self._unknown.copy()
        for value, (dtype, expected, wanted) in zip(values, self._checks):  # noqa: B905 - hot, lengths were compared
            if type(value) is not _ndarray or (value.dtype is not dtype and value.dtype != dtype):
                return None
            if value.flags.num & DENSE != DENSE:
                return None
            shape = value.shape
            if expected is None:
                if not _fits(shape, wanted, params):
                    return None
            elif shape != expected:
                return None
        return tuple(params)

    def _convert(self, args: Sequence[object], named: Mapping[str, object]) -> tuple[list[Array], Params]:
        """Take the long way: conversions, copies, precise errors."""
        arguments = self.by_name(args, named)
        arrays, params = take_arguments(self.spec, arguments)
        dense = [_dense(name, arrays[name]) for name in self.names]
        return dense, tuple(params[name] for name in self.params)

    def by_name(self, args: Sequence[object], named: Mapping[str, object]) -> dict[str, object]:
        """Return positional and named arguments as one mapping."""
        if len(args) > len(self.names):
            raise ArgumentError(
                f"{len(args)} arguments given by position: expected at most {len(self.names)} "
                f"({', '.join(self.names) or 'none'})"
            )
        arguments = dict(zip(self.names, args, strict=False))
        twice = [name for name in named if name in arguments]
        if twice:
            raise ArgumentError(f"{', '.join(twice)}: given by position and by name")
        return {**arguments, **named}


def _dense(name: str, array: Array) -> Array:
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    # a copy is what makes strides right; it shows in the log, so that a caller can find it
    _log.info("%s: strides %s of shape %s copied, %d bytes", name, array.strides, array.shape, array.nbytes)
    return np.array(array, order="C", copy=True)


# ---- constants
def bound_params(spec: Spec, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Check the shapes of some inputs against each other; return the parameters that they determine."""
    tensors = [t for t in spec.inputs if t.name in arrays]
    known: set[str] = set()
    for tensor in tensors:
        extents = tensor.extents[:-1] if info(tensor.dtype).packed else tensor.extents
        known |= {p for e in extents if (p := _parameter(e)) is not None}
    # the others' shapes hang on parameters that only a call gives
    checked = tuple(t for t in tensors if all(e.params() <= known for e in t.extents))
    part = Spec(spec.name, checked, (), tuple(t.name for t in checked), ())
    return bind_params(part, {t.name: arrays[t.name].shape for t in checked}, {})


def dense_storage(tensor: Tensor, value: object) -> Array:
    """Return an argument in storage form, dense; copied only if need be."""
    source, logical = to_storage(tensor, value)
    if logical is not None and len(logical) != len(tensor.shape):
        raise ArgumentError(f"{tensor.name}: expected {len(tensor.shape)} axes, got shape {logical}")
    return _dense(tensor.name, source)


def aligned_copy(tensor: Tensor, value: object) -> Array:
    """Return a dense copy of an argument in storage form, on a cache line of its own (64 bytes)."""
    return on_own_line(dense_storage(tensor, value))


def on_own_line(array: Array) -> Array:
    """Return a dense copy of an array that begins on a cache line (64 bytes)."""
    copy = aligned_zeros(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros that begin on a cache line (64 bytes): what nothing fills is nothing of the process's own."""
    memory = np.zeros(prod(shape) * dtype.itemsize + 64, np.uint8)
    return np.ndarray(shape, dtype, memory, -memory.ctypes.data % 64)
