"""What a regression suite calls: a kernel against the oracle, within the kernel's own error bound."""

from __future__ import annotations

# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# numpy's stubs leave view partly unknown, and a kernel's result is one array or a tuple
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from polyq.affine.arrays import Array, shape_of, take_arguments
from polyq.affine.bounds import Evaluation, caller_dtype, error_bound, logical
from polyq.affine.errors import ArgumentError
from polyq.affine.interpret import interpret
from polyq.affine.spec import Spec, Tensor
from polyq.schedule import Schedule
from polyq.schedule.evaluation import evaluation

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
    the forward error bound of :func:`polyq.affine.bounds.error_bound` along the kernel's ``schedule`` (for every order,
    and so wider, if it has none). ``reference`` is an array (a sequence of them for several outputs) to compare with
    instead of the oracle, within the bound of anything that computes the spec in its dtypes, in any order.
    ``arguments`` are the kernel's inputs and parameters by name. An element whose bound is inf, because an intermediate
    result may overflow or is not finite, is not compared; a :class:`UserWarning` says so if none of an output is.

    What ``bind`` returns is checked as it is, with what it holds; an input that it keeps packed alone is to be given
    again, for the oracle.

    The error names the element that is farthest outside its bound, with its value, the oracle's, the bound, and the
    kernel's schedule.
    """
    layer = kernel if hasattr(kernel, "bound_names") else None
    if layer is not None:
        kernel, arguments = _layer(layer, arguments)
    if not hasattr(kernel, "spec"):
        raise ArgumentError(
            f"assert_close: expected a kernel, or what its bind returns, got {type(kernel).__qualname__}"
        )
    spec = kernel.spec
    _, params = take_arguments(spec, arguments)
    at = getattr(kernel, "at", None)  # a range of sizes may have a schedule of its own
    schedule = getattr(kernel if at is None else at(**params), "schedule", None)
    form = evaluation(schedule) if isinstance(schedule, Schedule) and kernel.numerics != "strict" else None
    # the oracle runs first: a kernel that wrongly writes into its inputs must not change what it is compared with
    if reference is None:
        name, expected = "oracle", _sequence(spec, interpret(spec, **arguments))
    else:
        name, expected = "reference", [np.asarray(r) for r in _sequence(spec, reference)]
    bounds = _bounds(kernel, arguments, None if name == "reference" else expected, form)
    results = _sequence(spec, _called(kernel, layer, arguments))
    for tensor, result, right, bound in zip(spec.outputs, results, expected, bounds, strict=True):
        shape = shape_of(tensor, params)
        _check_form(spec, tensor, np.asarray(result), right)
        got, wanted = logical(tensor, np.asarray(result), shape), logical(tensor, right, shape)
        if bound is not None and bound.size and np.isinf(bound).all():
            warnings.warn(
                f"{_said_of(spec, tensor)}: no element has a finite error bound; none is compared", stacklevel=2
            )
        said = _compare(_said_of(spec, tensor), got, wanted, bound, name)
        if said is not None:
            raise AssertionError(said if schedule is None else f"{said}\n{schedule}")


def _layer(layer: Any, arguments: dict[str, Any]) -> tuple[Comparable, dict[str, Any]]:
    """Return the kernel of a bound callable, and all of its arguments: what was bound, unless it is given again."""
    kept: dict[str, Any] = layer.kept
    packed = [name for name in layer.bound_names if name not in arguments and name not in kept]
    if packed:
        again = ", ".join(f"{name}={name}" for name in packed)
        raise ArgumentError(
            f"assert_close: {', '.join(packed)}: packed when bound, and the original is not kept; give what was bound "
            f"as well, for the oracle: assert_close(layer, {again}, ...)"
        )
    return layer.kernel, {**{n: a for n, a in kept.items() if n in layer.bound_names}, **arguments}


def _called(kernel: Comparable, layer: Any, arguments: dict[str, Any]) -> Any:
    """Return what the kernel computes; inputs that only ``bind`` supplies are bound first."""
    if layer is not None:
        return layer(**{name: value for name, value in arguments.items() if name not in layer.bound_names})
    constants: tuple[str, ...] = getattr(kernel, "constants", ())
    if not constants:
        return kernel(**arguments)
    bind: Any = getattr(kernel, "bind", None)
    rest = {name: value for name, value in arguments.items() if name not in constants}
    return bind(**{name: arguments[name] for name in constants})(**rest)


def _bounds(
    kernel: Comparable, arguments: dict[str, Any], oracle: Sequence[Array] | None, form: Evaluation | None
) -> Sequence[Array | None]:
    """Return the bound of each output, ``None`` where results must be equal."""
    if oracle is None:
        return error_bound(kernel.spec, arguments, evaluation=form, reference=True)
    if kernel.numerics == "strict":
        return [None] * len(kernel.spec.outputs)
    return error_bound(kernel.spec, arguments, oracle, evaluation=form)


def _sequence(spec: Spec, value: Any) -> list[Any]:
    values = [value] if len(spec.outputs) == 1 and not isinstance(value, tuple) else list(value)
    if len(values) != len(spec.outputs):
        names = ", ".join(spec.output_names)
        raise AssertionError(f"{spec.name}: expected {len(spec.outputs)} outputs ({names}), got {len(values)}")
    return values


def _said_of(spec: Spec, tensor: Tensor) -> str:
    return tensor.name if spec.name == tensor.name else f"{spec.name}: {tensor.name}"


def _check_form(spec: Spec, tensor: Tensor, result: Array, expected: Array) -> None:
    dtype = caller_dtype(tensor)
    if result.dtype != dtype:
        raise AssertionError(f"{_said_of(spec, tensor)}: expected dtype {dtype.name}, got {result.dtype.name}")
    if result.shape != expected.shape:
        raise AssertionError(f"{_said_of(spec, tensor)}: expected shape {expected.shape}, got {result.shape}")


def _compare(place: str, got: Array, right: Array, bound: Array | None, name: str) -> str | None:
    """Return what is wrong with an output, ``None`` if nothing is."""
    with np.errstate(invalid="ignore"):
        same = (got == right) | ((got != got) & (right != right))
        apart = np.abs(got.astype(np.float64) - right.astype(np.float64))
        allowed = np.zeros(apart.shape) if bound is None else bound
        same |= ((apart <= allowed) & (allowed > 0)) | np.isinf(allowed)
    if np.all(same):
        return None
    excess = np.where(same, -1.0, np.where(np.isnan(apart), np.inf, apart - allowed))
    first = np.unravel_index(int(np.argmax(excess)), excess.shape)
    where = ", ".join(str(int(i)) for i in first)
    return (
        f"{place}{f'[{where}]' if first else ''}: kernel {got[first]}, {name} {right[first]}, "
        f"difference {float(apart[first]):.6g}, bound {float(allowed[first]):.6g}; "
        f"{int(np.sum(~same))} of {same.size} elements are off"
    )
