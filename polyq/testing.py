"""What a regression suite calls: a kernel against the oracle, within the kernel's own error bound."""

from __future__ import annotations

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave view partly unknown, and a kernel's result is one array or a tuple
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from polyq.affine.arrays import Array, caller_view, from_storage, shape_of, take_arguments
from polyq.affine.bounds import error_bound
from polyq.affine.dtypes import numpy_dtype
from polyq.affine.interpret import interpret
from polyq.affine.spec import Spec, Tensor

__all__ = ["assert_close"]


class Comparable(Protocol):
    """What :func:`assert_close` needs of a kernel."""

    @property
    def spec(self) -> Spec:
        """The spec that the kernel computes."""
        ...

    @property
    def numerics(self) -> str:
        """The numerics it was built with."""
        ...

    def __call__(self, **arguments: Any) -> Any:
        """Compute the outputs."""
        ...


def assert_close(kernel: Comparable, /, *, reference: Any = None, **arguments: Any) -> None:
    """Call ``kernel`` and compare each output with the oracle; raise :class:`AssertionError` where it is off.

    Under ``"strict"`` numerics the outputs must be equal (a zero's sign and a NaN's payload aside), under others within
    the forward error bound of :func:`polyq.affine.bounds.error_bound`. ``reference`` is an array (a sequence of them
    for several outputs) to compare with instead of the oracle, within the same bound; it is taken to be as accurate
    as the oracle. ``arguments`` are the kernel's inputs and parameters by name. An element whose bound is inf,
    because an intermediate result may overflow or is not finite, is not compared.
    """
    spec = kernel.spec
    _, params = take_arguments(spec, arguments)
    bounds: Sequence[Array | None] = [None] * len(spec.outputs)
    # the oracle runs first: a kernel that wrongly writes into its inputs must not change what it is compared with
    if reference is None:
        name, expected = "oracle", _sequence(spec, interpret(spec, **arguments))
        if kernel.numerics != "strict":
            bounds = error_bound(spec, arguments, expected)
    else:
        name, expected = "reference", [np.asarray(r) for r in _sequence(spec, reference)]
        bounds = error_bound(spec, arguments)
    results = _sequence(spec, kernel(**arguments))
    for tensor, result, right, bound in zip(spec.outputs, results, expected, bounds, strict=True):
        shape = shape_of(tensor, params)
        _check_form(spec, tensor, np.asarray(result), right)
        got, wanted = _logical(tensor, np.asarray(result), shape), _logical(tensor, right, shape)
        _compare(f"{spec.name}: {tensor.name}", got, wanted, bound, name)


def _sequence(spec: Spec, value: Any) -> list[Any]:
    values = [value] if len(spec.outputs) == 1 and not isinstance(value, tuple) else list(value)
    if len(values) != len(spec.outputs):
        names = ", ".join(spec.output_names)
        raise AssertionError(f"{spec.name}: expected {len(spec.outputs)} outputs ({names}), got {len(values)}")
    return values


def _check_form(spec: Spec, tensor: Tensor, result: Array, expected: Array) -> None:
    dtype = _caller_dtype(tensor)
    if result.dtype != dtype:
        raise AssertionError(f"{spec.name}: {tensor.name}: expected dtype {dtype.name}, got {result.dtype.name}")
    if result.shape != expected.shape:
        raise AssertionError(f"{spec.name}: {tensor.name}: expected shape {expected.shape}, got {result.shape}")


def _caller_dtype(tensor: Tensor) -> np.dtype[Any]:
    return caller_view(tensor, np.empty(0, numpy_dtype(tensor.dtype))).dtype


def _logical(tensor: Tensor, array: Array, shape: tuple[int, ...]) -> Array:
    if array.dtype != _caller_dtype(tensor):  # a reference in another dtype is in the logical shape already
        return array
    return from_storage(tensor, array.view(numpy_dtype(tensor.dtype)), shape)


def _compare(place: str, got: Array, right: Array, bound: Array | None, name: str) -> None:
    with np.errstate(invalid="ignore"):
        same = (got == right) | ((got != got) & (right != right))
        if bound is not None:
            difference = np.abs(got.astype(np.float64) - right.astype(np.float64))
            same |= ((difference <= bound) & (bound > 0)) | np.isinf(bound)
    if np.all(same):
        return
    wrong = np.argwhere(~same)
    first = tuple(int(i) for i in wrong[0])
    element = f"{place}[{', '.join(map(str, first))}]" if first else place
    limit = 0.0 if bound is None else float(bound[first])
    gap = abs(float(got[first]) - float(right[first]))
    raise AssertionError(
        f"{element}: kernel {got[first]}, {name} {right[first]}, difference {gap:.6g}, bound {limit:.6g}; "
        f"{len(wrong)} of {same.size} elements are off"
    )
