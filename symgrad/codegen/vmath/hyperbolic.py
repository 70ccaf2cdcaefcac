"""tanh, and in time its relatives.

tanh from expm1(2|x|) kept as a sum of two, with a corrected division. Start at `tanh`.
"""

from __future__ import annotations

from symgrad.codegen.vmath.exponential import expm1_parts
from symgrad.codegen.vmath.notation import Value, at_most, fast_two_sum, fma

# tanh rounds to 1 from here on.
TANH_ONE = {"double": 20.0, "float": 10.0}


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    a = at_most(abs(x), TANH_ONE[x.kind])
    h, l = fast_two_sum(*expm1_parts(a + a, 0))
    d = h + 2.0
    d_low = (h - (d - 2.0)) + l
    reciprocal = 1.0 / d
    q = h * reciprocal
    q = fma(reciprocal, (fma(-q, d, h) + l) - q * d_low, q)
    return q.copysign(x)
