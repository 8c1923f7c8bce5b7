"""What one operation may be off by, for each dtype: roundings, underflow, and the functions of the C library.

Sources: IEEE 754 for the operations that round once (``+ - * /``, sqrt, conversions); for exp, log, tanh and erf the
4 ulp that glibc's libmvec is tested for (sourceware.org/glibc/wiki/libmvec), and for C's double functions Zimmermann et
al., Accuracy of Mathematical Functions in Single, Double, Extended Double and Quadruple Precision, whose greatest known
error of glibc's four is 2.3 ulp (tanh). ``docs/decisions/error-bounds.md`` has what was measured of both.
"""

from __future__ import annotations

import math

__all__ = ["GREATEST", "LEAST_NORMAL", "PRECISION", "SLACK", "UNDERFLOW", "function_error", "gamma", "half_ulp", "unit"]

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


def gamma(n: float, u: float) -> float:
    """Return ``n u / (1 - n u)``, the relative error of n roundings; inf from ``n u = 1`` on.

    >>> gamma(4, 2.0 ** -24) > 4 * 2.0 ** -24
    True
    """
    return n * u / (1.0 - n * u) if n * u < 1.0 else math.inf


def function_error(dtype: str) -> tuple[float, float]:
    """Return the relative and the absolute error of exp, log, tanh and erf against their values in float64.

    An ulp is at most twice the unit roundoff, and the least positive number where results are below the least normal
    one. f16 and bf16 are C's double function rounded once, f64 is that function, f32 may come from vector code.
    """
    reference = 2.0 * DOUBLE_ULPS * half_ulp("f64")
    if dtype == "f32":
        return 2.0 * VECTOR_ULPS * half_ulp("f32") + reference, 2.0 * VECTOR_ULPS * UNDERFLOW["f32"]
    if dtype == "f64":
        return 2.0 * reference, 4.0 * DOUBLE_ULPS * UNDERFLOW["f64"]
    return half_ulp(dtype) + 2.0 * reference, UNDERFLOW[dtype]
