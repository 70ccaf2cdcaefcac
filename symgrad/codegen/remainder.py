"""The exact remainder of floats, fmod, as vector IR.

With q = trunc(|x| / |y|) below 2^53 (2^24 in float32), |x| - q |y| is exact in one fma, and off by
at most one |y| since only the quotient's rounding can lift q. Lanes with larger quotients, which
are rare, go through a function that takes multiples of |y| away 2^52 (2^23) at a time. The result
is exact either way, so its bits do not depend on the way. Start reading at `float_remainder`.
"""

from __future__ import annotations

from symgrad.codegen.ir import EXPONENT_BIAS, MANTISSA_BITS, Function, Module, Val
from symgrad.codegen.vmath.notation import Value, fma, select

INFINITY = float("inf")


def float_remainder(f: Function, x: Val, y: Val) -> Val:
    """x - y * trunc(x / y); NaN for y = 0 or infinite x, x for infinite y."""
    a, c = abs(Value(f, x)), abs(Value(f, y))
    quotient = a / c
    near = _step(a, c, quotient)
    # Infinite where y is 0 (NaN results already) or where the quotient overflows.
    far = (quotient >= 2.0 ** (a.mantissa_bits + 1)) & (c > 0.0) & (a < INFINITY)
    before = f.here()
    slow, after = f.label("far"), f.label("remainder")
    f.branch_if(_any(f, far.val), slow, after)
    f.start(slow)
    reduced = f.call(_far(f.module, x.kind, x.width), (x.kind, x.width), [a.val, c.val], "nounwind")
    assert reduced is not None
    mixed = select(far, Value(f, reduced), near)
    leave = f.here()
    f.branch(after)
    f.start(after)
    phi = f.phi(x.kind, x.width)
    f.set_phi(phi, [(near.val, before), (mixed.val, leave)])
    result = Value(f, phi[0])
    result = select(c.equals(INFINITY) & (a < INFINITY), a, result)
    return result.copysign(Value(f, x)).val


def _step(a: Value, c: Value, quotient: Value) -> Value:
    q = Value(a.f, a.f.truncate(quotient.val))
    r = fma(-q, c, a)
    return select(r < 0.0, r + c, r)


def _any(f: Function, mask: Val) -> Val:
    if mask.width == 1:
        return mask
    return f.intrinsic("vector.reduce.or", "i1", 1, [mask], suffix=f"v{mask.width}i1")


def _far(module: Module, kind: str, width: int) -> str:
    """The function for finite a >= 0 and c > 0 with any quotient, added at first use."""
    name = f"sg_remainder_far_v{width}{'f64' if kind == 'double' else 'f32'}"
    if name in module.functions:
        return name
    arguments = [("a", kind, width), ("c", kind, width)]
    f = Function(module, name, arguments, (kind, width), "noinline cold nounwind", "internal")
    a, c = (Value(f, v) for v in f.arguments)
    up = 2.0 ** MANTISSA_BITS[kind]
    # From the smallest subnormal to the largest number.
    rounds = (2 * EXPONENT_BIAS[kind] + MANTISSA_BITS[kind]) // MANTISSA_BITS[kind] + 1
    t = c
    for _ in range(rounds):
        larger = t * up
        t = select(larger <= a, larger, t)
    for _ in range(rounds + 1):
        a = _step(a, t, a / t)
        t = select(t > c, t * (1.0 / up), t)
    f.ret(a.val)
    f.finish()
    return name
