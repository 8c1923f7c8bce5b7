"""A caller's arrays and the tensors of a spec: conversion, checks, parameters, packed storage, random data.

An array has two forms. In *storage* it is what a kernel reads: the dtype of :func:`polyq.affine.dtypes.numpy_dtype`
(sub-byte types packed in ``uint8``, bf16 as ``uint16``). In *logical* form it has the tensor's shape and one element
per entry: sub-byte integers as ``int8`` or ``uint8``, bf16 as the ``float32`` of the same value.
"""

from __future__ import annotations

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave reshape, view and clip partly unknown
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from polyq.affine.bits import Array, pack, packed_extent, round_bf16, unpack, wrap
from polyq.affine.conversion import advice
from polyq.affine.dtypes import info, numpy_dtype, value_range
from polyq.affine.errors import ArgumentError, ArgumentTypeError
from polyq.affine.expr import Affine, Param
from polyq.affine.names import meant, misspelt
from polyq.affine.spec import Spec, Tensor

__all__ = [
    "Array",
    "bind_params",
    "collect",
    "from_storage",
    "pack",
    "packed_extent",
    "random_arrays",
    "round_bf16",
    "shape_of",
    "storage_shape",
    "take_arguments",
    "to_caller",
    "to_storage",
    "unpack",
    "wrap",
]


# ---- shapes and parameters
def shape_of(tensor: Tensor, params: Mapping[str, int]) -> tuple[int, ...]:
    """Return the logical shape for values of the parameters; an extent below 0 is 0.

    >>> shape_of(Tensor("y", "f32", ("n - 2", 3)), {"n": 1})
    (0, 3)
    """
    return tuple(max(0, extent.evaluate({}, params)) for extent in tensor.extents)


def storage_shape(tensor: Tensor, params: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of the storage array: the logical one, the last axis in bytes for a sub-byte type.

    >>> storage_shape(Tensor("w", "u4", ("n", 5)), {"n": 3})
    (3, 3)
    """
    shape = shape_of(tensor, params)
    if not shape or not info(tensor.dtype).packed:
        return shape
    return (*shape[:-1], packed_extent(tensor.dtype, shape[-1]))


def bind_params(spec: Spec, shapes: Mapping[str, Sequence[int]], given: Mapping[str, object]) -> dict[str, int]:
    """Return the value of every parameter of ``spec`` and check all shapes of inputs.

    ``shapes`` holds the storage shape of each input. A shape entry that is a bare parameter determines it; the last
    axis of a sub-byte tensor determines none, since 7 and 8 nibbles are both four bytes. ``given`` holds parameters
    by name. Raises :class:`ArgumentError` for a rank, an extent or a parameter that does not fit.
    """
    values: dict[str, int] = {}
    source: dict[str, str] = {}
    for tensor in spec.inputs:
        shape, entries = shapes[tensor.name], tensor.extents
        if len(shape) != len(entries):
            raise ArgumentError(
                f"{tensor.name}: expected {len(entries)} axes ({_described(tensor)}), got shape {tuple(shape)}"
            )
        determining = entries[:-1] if info(tensor.dtype).packed else entries
        for axis, entry in enumerate(determining):
            name = _bare(entry)
            if name is not None and name not in values:
                values[name], source[name] = int(shape[axis]), f"axis {axis} of {tensor.name}"
    needed = spec.params
    _bind_given(needed, values, source, given)
    missing = [name for name in needed if name not in values]
    if missing:
        call = ", ".join(f"{name}=..." for name in missing)
        raise ArgumentError(
            f"parameter {', '.join(map(repr, missing))}: no axis of an input has that size by itself; "
            f"pass it by name: {call}"
        )
    for tensor in spec.inputs:
        _check_shape(tensor, shapes[tensor.name], values, source)
    return values


def _bare(entry: Affine) -> str | None:
    if entry.const == 0 and len(entry.terms) == 1:
        atom, coefficient = entry.terms[0]
        if coefficient == 1 and isinstance(atom, Param):
            return atom.name
    return None


#: parameters stay below this, so that sizes in bytes fit 64 bits
MOST = 1 << 48


def _bind_given(
    needed: Sequence[str], values: dict[str, int], source: dict[str, str], given: Mapping[str, object]
) -> None:
    for name, value in given.items():
        if name not in needed:
            known = ", ".join(needed) or "none"
            hint = meant(name, needed)
            raise ArgumentError(f"{name}: this spec has no parameter of that name; its parameters: {known}{hint}")
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise ArgumentTypeError(f"parameter {name!r}: expected an integer, got {value!r}")
        if value < 0:
            raise ArgumentError(f"parameter {name!r}: expected a value of at least 0, got {value}")
        if value >= MOST:
            raise ArgumentError(f"parameter {name!r}: expected a value below 2**48, got {value}; no memory holds more")
        if values.get(name, value) != value:
            raise ArgumentError(f"parameter {name!r}: given as {value}, but {source[name]} makes it {values[name]}")
        values[name] = int(value)
        source.setdefault(name, "the value given by name")


def _check_shape(tensor: Tensor, shape: Sequence[int], values: Mapping[str, int], source: Mapping[str, str]) -> None:
    expected = storage_shape(tensor, values)
    if tuple(shape) == expected:
        return
    used = sorted({p for e in tensor.extents for p in e.params()})
    notes = "".join(f"; {p} = {values[p]} from {source[p]}" for p in used)
    if info(tensor.dtype).packed:
        fields = 8 // info(tensor.dtype).bits
        notes += f"; {tensor.dtype} elements are packed in uint8, {fields} a byte, along the last axis"
    raise ArgumentError(f"{tensor.name}: expected shape {expected} ({_described(tensor)}), got {tuple(shape)}{notes}")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


# ---- taking a caller's arrays
def to_storage(tensor: Tensor, value: object) -> tuple[Array, tuple[int, ...] | None]:
    """Return ``value`` as a storage array (not copied where it is one), and its logical shape where that is known.

    Taken are numpy arrays and scalars of any strides and byte order, anything with ``__dlpack__``,
    ``__array_interface__`` or a buffer; for a sub-byte type also ``ml_dtypes`` arrays in the logical shape, for bf16
    ``ml_dtypes.bfloat16``. Everything else, another dtype included, is an :class:`ArgumentTypeError`.
    """
    array = _as_array(tensor, value)
    expected = numpy_dtype(tensor.dtype)
    if array.dtype == expected:
        return array, None
    name = array.dtype.name
    if tensor.signless and name == f"u{expected.name}":
        return _as_signed(array, expected), None
    if info(tensor.dtype).packed and name in (_ML_NAMES[tensor.dtype], "u" * tensor.signless + _ML_NAMES[tensor.dtype]):
        logical = array.astype(np.int8 if info(tensor.dtype).kind == "i" else np.uint8)
        return pack(tensor.dtype, logical), array.shape
    if tensor.dtype == "bf16" and name == "bfloat16":
        return array.view(np.uint16) if array.flags.c_contiguous else np.ascontiguousarray(array).view(np.uint16), None
    if array.dtype.kind in "uif" and array.dtype.newbyteorder("=") == expected:
        return array.astype(expected), None  # foreign byte order: the values are right, only their bytes turn
    wanted = _expected_dtype(tensor.dtype)
    raise ArgumentTypeError(f"{tensor.name}: expected {wanted}, got dtype {name}{advice(tensor, array)}")


def _as_signed(array: Array, expected: np.dtype[Any]) -> Array:
    """Return the same bits as signed integers of the same width."""
    return array.astype(array.dtype.newbyteorder("="), copy=False).view(expected)


_ML_NAMES = {"u4": "uint4", "i4": "int4", "u2": "uint2", "i2": "int2"}


def _expected_dtype(dtype: str) -> str:
    if info(dtype).packed:
        return f"{dtype} packed in uint8 (or ml_dtypes.{_ML_NAMES[dtype]} in the logical shape)"
    if dtype == "bf16":
        return "bf16 as ml_dtypes.bfloat16 (or its bits as uint16)"
    return f"dtype {numpy_dtype(dtype).name} ({dtype})"


def _as_array(tensor: Tensor, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise ArgumentTypeError(f"{tensor.name}: a masked array is not taken, its mask would be lost; fill it first")
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if isinstance(value, (list, tuple, int, float)):
        raise ArgumentTypeError(
            f"{tensor.name}: expected an array on the CPU of {_expected_dtype(tensor.dtype)}, "
            f"got {_kind(value)}: numpy.asarray makes an array of it"
        )
    try:
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if hasattr(value, "__array_interface__"):
            return np.asarray(value)
        if not isinstance(value, (bytes, bytearray)):
            return np.asarray(memoryview(value))
    except (TypeError, ValueError, RuntimeError, BufferError, AssertionError) as error:
        # an object without any array protocol ends here too: memoryview refuses it
        raise ArgumentTypeError(
            f"{tensor.name}: expected an array on the CPU of {_expected_dtype(tensor.dtype)}, "
            f"got {_kind(value)}: {error}"
        ) from error
    raise ArgumentTypeError(f"{tensor.name}: expected an array of {_expected_dtype(tensor.dtype)}, got {_kind(value)}")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def take_arguments(spec: Spec, arguments: Mapping[str, object]) -> tuple[dict[str, Array], dict[str, int]]:
    """Split keyword arguments into the storage arrays of all inputs and the values of all parameters, all checked.

    Raises :class:`ArgumentError` for a missing or unknown name, a shape or a parameter, :class:`ArgumentTypeError` for
    a dtype or something that is no array.
    """
    missing = [name for name in spec.input_names if name not in arguments]
    if missing:
        raise ArgumentError(
            f"missing input {', '.join(missing)}: expected {', '.join(map(str, spec.inputs))}; "
            f"got {', '.join(arguments) or 'none'}{misspelt(arguments, missing, (*spec.input_names, *spec.params))}"
        )
    given: dict[str, Any] = {k: v for k, v in arguments.items() if k not in spec.input_names}
    for name in given:
        if name not in spec.params:
            known = (*spec.input_names, *spec.params)
            hint = meant(name, [n for n in known if n not in arguments])
            raise ArgumentError(
                f"{name}: no input or parameter has that name; expected {', '.join(known) or 'none'}{hint}"
            )
    arrays: dict[str, Array] = {}
    logical: dict[str, tuple[int, ...]] = {}
    for tensor in spec.inputs:
        arrays[tensor.name], shape = to_storage(tensor, arguments[tensor.name])
        if shape is not None:
            logical[tensor.name] = shape
    params = bind_params(spec, {name: a.shape for name, a in arrays.items()}, given)
    for name, shape in logical.items():
        expected = shape_of(spec.tensor(name), params)
        if shape != expected:
            raise ArgumentError(f"{name}: expected shape {expected} ({_described(spec.tensor(name))}), got {shape}")
    return arrays, params


def from_storage(tensor: Tensor, array: Array, shape: tuple[int, ...]) -> Array:
    """Return the logical array of a storage array; it may share memory with it."""
    if info(tensor.dtype).kind == "u" and array.dtype.kind == "i":  # a spec that is told with the type that is read
        array = array.view(f"u{array.dtype.itemsize}")
    if info(tensor.dtype).packed:
        return unpack(tensor.dtype, array, shape[-1] if shape else 1)
    if tensor.dtype == "bf16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array


def to_caller(tensor: Tensor, logical: Array) -> Array:
    """Return a logical array in the form a caller gets: packed, or ``ml_dtypes.bfloat16`` (``uint16`` without it)."""
    if info(tensor.dtype).packed:
        return pack(tensor.dtype, logical)
    if tensor.dtype == "bf16":
        bits = (np.ascontiguousarray(logical, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return caller_view(tensor, bits.reshape(logical.shape))
    return logical


def caller_view(tensor: Tensor, storage: Array) -> Array:
    """Return a storage array as a caller sees it, without a copy: bf16 as ``ml_dtypes.bfloat16`` if installed."""
    if tensor.dtype != "bf16":
        return storage
    bfloat16 = _bfloat16()
    return storage if bfloat16 is None else storage.view(bfloat16)


@lru_cache(maxsize=1)
def _bfloat16() -> np.dtype[Any] | None:
    try:  # the statement waits where another thread is importing it; what stands in sys.modules may be half there
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


# ---- results
def collect(spec: Spec, values: Sequence[Array]) -> Any:
    """Return the outputs as a caller gets them: one array alone, several as a named tuple in their order."""
    if len(values) == 1:
        return values[0]
    return _outputs_type(spec.output_names)(*values)


@lru_cache(maxsize=256)
def _outputs_type(names: tuple[str, ...]) -> Any:
    kind: Any = namedtuple("Outputs", names, rename=True)  # pyright: ignore[reportUntypedNamedTuple] - known at run time

    def reduce(self: tuple[Array, ...]) -> tuple[Any, ...]:  # pickle finds no class of that name
        return _outputs, (names, tuple(self))

    kind.__reduce__ = reduce
    return kind


def _outputs(names: tuple[str, ...], values: Sequence[Array]) -> Any:
    return _outputs_type(names)(*values)


# ---- random data
def random_arrays(spec: Spec, params: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Return random storage arrays for all inputs: floats standard normal, narrow integers over their whole range.

    Integers of 32 bits and more stay within 1000, so that sums and products of a test do not wrap.
    """
    generator = np.random.default_rng(seed)
    return {t.name: _random(t, params, generator) for t in spec.inputs}


def _random(tensor: Tensor, params: Mapping[str, int], generator: np.random.Generator) -> Array:
    d, shape = info(tensor.dtype), shape_of(tensor, params)
    if d.kind == "f":
        if d.name == "f64":
            return np.asarray(generator.standard_normal(shape))
        values = np.asarray(generator.standard_normal(shape, dtype=np.float32))
        return values if d.name == "f32" else to_caller(tensor, round_to(d.name, values))
    if d.kind == "b":
        return generator.integers(0, 2, shape).astype(np.bool_)
    low, high = value_range(d.name)
    if d.bits >= 32:
        low, high = max(low, -1000), 1000
    drawn = np.int64 if d.bits > 8 else _code_type(d.name)
    logical = np.asarray(generator.integers(low, high, shape, dtype=drawn, endpoint=True))
    return pack(d.name, logical) if d.packed else logical.astype(numpy_dtype(d.name))


def _code_type(dtype: str) -> type[np.integer[Any]]:
    return np.int8 if info(dtype).kind == "i" else np.uint8


def round_to(dtype: str, values: Array) -> Array:
    """Round floats once to ``dtype``; bf16 comes as ``float32``."""
    return round_bf16(values) if dtype == "bf16" else values.astype(numpy_dtype(dtype))
