"""What a caller gets: outputs allocated or taken from ``out=``, overlap with inputs resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from polyq.affine.arrays import Array, caller_view, storage_shape
from polyq.affine.dtypes import info, numpy_dtype
from polyq.affine.errors import ArgumentError, ArgumentTypeError
from polyq.affine.spec import Spec, Tensor
from polyq.build.arguments import DENSE, Params

__all__ = ["Results"]

_OWNED = 0x0004  # numpy's flag bit OWNDATA
_PLAIN = DENSE | _OWNED | 0x0400  # WRITEABLE
_KEPT_SHAPES = 4096  # values of parameters whose shapes are kept
_ndarray: Any = np.ndarray


class Results:
    """How the outputs of one kernel are allocated, taken from ``out=``, and given back."""

    def __init__(self, spec: Spec, params: Sequence[str]) -> None:
        self.tensors = spec.outputs
        self.params = tuple(params)
        self.dtypes = [numpy_dtype(t.dtype) for t in self.tensors]
        #: for each output the position of the input that it updates, or -1
        self.updates = [spec.input_names.index(t.name) if t.name in spec.input_names else -1 for t in self.tensors]
        self.updating = any(update >= 0 for update in self.updates)
        self.bf16 = any(t.dtype == "bf16" for t in self.tensors)
        self.packed = [at for at, t in enumerate(self.tensors) if info(t.dtype).packed]
        self._shapes: dict[Params, list[tuple[int, ...]]] = {}

    def shapes(self, params: Params) -> list[tuple[int, ...]]:
        """Return the storage shapes of all outputs."""
        found = self._shapes.get(params)
        if found is None:
            values = dict(zip(self.params, params, strict=True))
            if len(self._shapes) >= _KEPT_SHAPES:
                self._shapes.clear()
            found = self._shapes[params] = [storage_shape(t, values) for t in self.tensors]
        return found

    def fresh(self, inputs: Sequence[Array], params: Params) -> list[Array]:
        """Return new arrays; one that updates an input starts as a copy of it."""
        arrays = [np.empty(shape, dtype) for shape, dtype in zip(self.shapes(params), self.dtypes)]  # noqa: B905 - hot
        for at in self.packed:  # what fills up the last byte of a row is 0
            arrays[at].fill(0)
        if self.updating:
            for array, update in zip(arrays, self.updates, strict=True):
                if update >= 0:
                    np.copyto(array, inputs[update])
        return arrays

    def as_given(self, arrays: list[Array]) -> list[Array]:
        """Return storage arrays as a caller sees them: bf16 bits as what ``ml_dtypes`` calls them."""
        if not self.bf16:
            return arrays
        return [caller_view(t, a) for t, a in zip(self.tensors, arrays, strict=True)]

    def into(self, out: object, inputs: Sequence[Array], params: Params) -> tuple[list[Array], list[Array]]:
        """Return the arrays to compute in and the caller's arrays, which may be the same.

        An ``out`` that is dense and shares no memory with an input is computed in directly, and so is one that is the
        very input it updates; any other gets the result copied.
        """
        if self._is_plain(out, inputs, params):
            plain = [cast("Array", out)]
            return plain, plain
        taken = self._taken(out, params)
        for i, a in enumerate(taken[1:], 1):
            for j, b in enumerate(taken[:i]):
                if np.may_share_memory(a, b):
                    one, two = self.tensors[j].name, self.tensors[i].name
                    raise ArgumentError(f"out: the arrays for {one} and {two} overlap; give each memory of its own")
        return [self._place(i, array, inputs) for i, array in enumerate(taken)], taken

    def _is_plain(self, out: Any, inputs: Sequence[Array], params: Params) -> bool:
        """Whether ``out`` is an array that the only output can be computed in as it stands: the common case."""
        if type(out) is not _ndarray or len(self.dtypes) != 1 or self.updating:
            return False
        if out.dtype is not self.dtypes[0] or out.flags.num & _PLAIN != _PLAIN or out.shape != self.shapes(params)[0]:
            return False
        # two arrays that own their memory share it only if they are one
        return not any(
            given is out or (not given.flags.num & _OWNED and np.may_share_memory(out, given)) for given in inputs
        )

    def _place(self, i: int, array: Array, inputs: Sequence[Array]) -> Array:
        update = self.updates[i]
        flags = array.flags.num
        usable = flags & DENSE == DENSE
        for j, given in enumerate(inputs):
            apart = array is not given and flags & given.flags.num & _OWNED
            if usable and not apart and np.may_share_memory(array, given):
                usable = j == update and _same_memory(array, given)
        place = array if usable else np.empty(array.shape, array.dtype)
        if update >= 0 and not (usable and _same_memory(array, inputs[update])):
            np.copyto(place, inputs[update])
        return place

    def _taken(self, out: object, params: Params) -> list[Array]:
        count = len(self.tensors)
        given = cast("Sequence[object]", out) if isinstance(out, (tuple, list)) else (out,)
        if len(given) != count:
            names = ", ".join(t.name for t in self.tensors)
            raise ArgumentError(f"out: expected {_counted(count)} ({names}), got {_counted(len(given))}")
        pairs = zip(self.tensors, given, self.dtypes, self.shapes(params), strict=True)
        return [_output(tensor, value, dtype, shape) for tensor, value, dtype, shape in pairs]


def _counted(count: int) -> str:
    return "one array" if count == 1 else f"a tuple of {count} arrays"


def _same_memory(a: Array, b: Array) -> bool:
    return a is b or (a.shape == b.shape and a.strides == b.strides and a.ctypes.data == b.ctypes.data)


def _output(tensor: Tensor, value: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Check one array of ``out=`` and return it as storage."""
    array: Any = _writable(tensor, value)
    if tensor.dtype == "bf16" and array.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    if array.dtype is not dtype and array.dtype != dtype:
        raise ArgumentTypeError(f"out: {tensor.name} expects dtype {dtype} ({tensor.dtype}), got {array.dtype}")
    if array.shape != shape:
        raise ArgumentError(f"out: {tensor.name} expects shape {shape}, got {array.shape}")
    if not array.flags.writeable:
        raise ArgumentError(f"out: the array for {tensor.name} is read-only; give one that can be written")
    # an empty array's strides may all be 0
    if array.size and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True)):
        raise ArgumentError(f"out: the array for {tensor.name} is a broadcast view, several of its elements are one")
    span = sum((n - 1) * abs(s) for s, n in zip(array.strides, array.shape, strict=True)) + array.itemsize
    if array.size and span < array.nbytes:
        raise ArgumentError(f"out: the elements of the array for {tensor.name} overlap; give one that keeps them apart")
    return array


def _writable(tensor: Tensor, value: object) -> Array:
    """Return a caller's output as an array on the same memory, never a copy."""
    if type(value) is _ndarray:
        return cast("Array", value)
    kind = type(value).__qualname__
    try:
        if isinstance(value, (np.ma.MaskedArray, np.generic)):
            raise TypeError("neither masked arrays nor numpy scalars can be written in place")
        return _shared(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentTypeError(
            f"out: {tensor.name} expects a writable array on the CPU, got {kind}: {error}"
        ) from error


def _shared(value: Any) -> Array:
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        # an exchange without versions shows memory read-only; torch's own view of the same memory can be written
        return np.asarray(value.numpy()) if hasattr(value, "numpy") else np.from_dlpack(value)
    return np.asarray(memoryview(value))
