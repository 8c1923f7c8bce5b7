"""What one operation may be off by, for each dtype: roundings, underflow, and the functions of the C library.

Sources: IEEE 754 for the operations that round once (``+ - * /``, sqrt, conversions); for exp, log, tanh and erf the
4 ulp that glibc's libmvec is tested for (sourceware.org/glibc/wiki/libmvec), and for C's double functions Zimmermann et
al., Accuracy of Mathematical Functions in Single, Double, Extended Double and Quadruple Precision, who find less than
3 ulp in all four. ``docs/decisions/error-bounds.md`` has what was measured.
"""

from __future__ import annotations

import math

import numpy as np

from polyq.affine.arrays import Array

__all__ = [
    "GREATEST", "LEAST_NORMAL", "PRECISION", "SLACK", "UNDERFLOW", "binade", "function_error", "gamma", "half_ulp",
    "unit",
]  # fmt: skip

#: bits of the significand, the implicit one included
PRECISION = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
#: half of the least positive number: the greatest error of an underflow
UNDERFLOW = {"f16": 2.0**-25, "bf16": 2.0**-134, "f32": 2.0**-150, "f64": 2.0**-1074}  # f64: the reference's as well
LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}
#: the greatest finite number
GREATEST = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38, "f64": 1.7976931348623157e308}
#: units in the last place by which f32 functions in vector code may be off
VECTOR_ULPS = 4
#: units in the last place by which C's double functions may be off
DOUBLE_ULPS = 3
#: what the reference value, itself computed in float64, is off by in one rounding
REFERENCE = 2.0**-53
#: the bound is computed in float64 as well: terms that are not negative, so that this covers its own roundings
SLACK = 1.0 + 2.0**-20


def half_ulp(dtype: str) -> float:
    """Return the unit roundoff: the greatest relative error of one rounding.

    >>> half_ulp("f32") == 2.0**-24
    True
    """
    return 2.0 ** -PRECISION[dtype]


def unit(dtype: str) -> float:
    """Return by how much one operation of a kernel and the same operation in float64 may differ, relatively."""
    return half_ulp(dtype) + REFERENCE


def binade(size: Array) -> Array:
    """Return the greatest power of two that is at most ``size``: a rounding is at most the unit roundoff of that.

    ``size``, of at least 0, may be too small by what float64 rounds, which must not lose a power of two.

    >>> binade(np.array([0.0, 0.75, 1.0, 1023.5, np.inf])).tolist()
    [0.0, 0.5, 1.0, 512.0, inf]
    """
    bits = np.asarray(size * (1.0 + 2.0**-40), np.float64).view(np.int64)
    return (bits & np.int64(0x7FF0000000000000)).view(np.float64)


def gamma(n: float, u: float) -> float:
    """Return ``n u / (1 - n u)``, the relative error of n roundings; inf from ``n u = 1`` on.

    >>> gamma(4, 2.0 ** -24) > 4 * 2.0 ** -24
    True
    """
    return n * u / (1.0 - n * u) if n * u < 1.0 else math.inf


def function_error(dtype: str) -> tuple[float, float]:
    """Return the errors of exp, log, tanh and erf against their values in float64: relative to the binade, absolute.

    An ulp is twice the unit roundoff of the binade, and the least positive number where results are below the least
    normal one. f16 and bf16 are C's double function rounded once, f64 is that function, f32 may come from vector code.
    """
    reference = 2.0 * DOUBLE_ULPS * half_ulp("f64")
    if dtype == "f32":
        return 2.0 * VECTOR_ULPS * half_ulp("f32") + reference, 2.0 * VECTOR_ULPS * UNDERFLOW["f32"]
    if dtype == "f64":
        return 2.0 * reference, 4.0 * DOUBLE_ULPS * UNDERFLOW["f64"]
    return half_ulp(dtype) + 2.0 * reference, UNDERFLOW[dtype]
