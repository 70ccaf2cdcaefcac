"""erf, and in time its relatives.

|x| <= 1: x + x P(x^2). Beyond: 1 - erfc(1) exp(t W(t)), t = |x| - 1, where
log erfc(1 + t) = log erfc(1) + t W(t); the factor erfc(1) stays outside of the exponential, whose
argument is then small where erfc matters. P and W are minimax polynomials (Remez).
Start at `erf`.
"""

from __future__ import annotations

from symgrad.codegen.vmath.exponential import exp
from symgrad.codegen.vmath.notation import Value, at_most, fma, hexes, horner, select

# erf rounds to 1 from here on.
ERF_ONE = {"double": 6.0, "float": 4.0}
ERFC_ONE = {
    "double": float.fromhex("0x1.4226162fbddd5p-3"),
    "float": float.fromhex("0x1.422616p-3"),
}
ERF_P = {
    "double": hexes(
        "0x1.06eba8214db68p-3 -0x1.812746b0379bdp-2 0x1.ce2f21a040d18p-4 -0x1.b82ce311fa9bap-6"
        " 0x1.565bccf92c29fp-8 -0x1.c02db03dfb611p-11 0x1.f9a2baac42d27p-14"
        " -0x1.f4ca4d9faec1p-17 0x1.b97fd5a8b27c7p-20 -0x1.5c0731b678e71p-23"
        " 0x1.d71b57cf3f437p-27 -0x1.abaf1d576908ap-31"
    ),
    "float": hexes(
        "0x1.06eba8p-3 -0x1.81273ep-2 0x1.ce2cf8p-4 -0x1.b7f90ap-6 0x1.540596p-8 -0x1.a3f644p-11"
        " 0x1.496854p-14"
    ),
}
ERF_W = {
    "double": hexes(
        "-0x1.51c9b0006c234p+1 -0x1.afabc11a2979ap-1 -0x1.5477f09bec804p-5 0x1.48c9d3e9f2a65p-7"
        " -0x1.033f65ede7e51p-9 0x1.f1b3b89f5c82p-13 0x1.b8d6deeace632p-16"
        " -0x1.c78ea8752c82cp-16 0x1.41fffddbd149bp-17 -0x1.11dbb34304b62p-19"
        " 0x1.03ebedad7ee5ap-23 0x1.f1745dc8ba139p-24 -0x1.1093c30fa317bp-24"
        " 0x1.5bd5328f18dc8p-26 -0x1.439c53cba109bp-28 0x1.c9e66a2244819p-31"
        " -0x1.eac8ade05194bp-34 0x1.82ede9cd61ce9p-37 -0x1.a76e06c64496p-41"
        " 0x1.1f156fe3cd1bap-45 -0x1.6af86de09ee32p-51"
    ),
    "float": hexes(
        "-0x1.51c9bp+1 -0x1.afabdp-1 -0x1.547566p-5 0x1.48e7dap-7 -0x1.06462ap-9"
        " 0x1.290c18p-12 -0x1.559a34p-16"
    ),
}


def erf(x: Value) -> Value:
    """Error function."""
    a = at_most(abs(x), ERF_ONE[x.kind])
    inner = fma(a, horner(a * a, ERF_P[x.kind]), a)
    t = a - 1.0
    outer = fma(exp(t * horner(t, ERF_W[x.kind])), -ERFC_ONE[x.kind], 1.0)
    return select(a > 1.0, outer, inner).copysign(x)
