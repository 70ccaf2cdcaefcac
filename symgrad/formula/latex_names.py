r"""How LaTeX writes names: of functions, of leaves, of anything else.

`FUNCTIONS` maps torch's names to a style: one that ends in ``#`` is a name before parentheses, in
others ``@`` stands for the argument. Start reading at `symbol`.
"""

from __future__ import annotations

import re

FUNCTIONS = {
    **{f: rf"\{f}#" for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "log")},
    "asin": r"\arcsin#",
    "acos": r"\arccos#",
    "atan": r"\arctan#",
    "atan2": r"\operatorname{atan2}#",
    "asinh": r"\operatorname{arsinh}#",
    "acosh": r"\operatorname{arcosh}#",
    "atanh": r"\operatorname{artanh}#",
    "log2": r"\log_{2}#",
    "log10": r"\log_{10}#",
    "sigmoid": r"\sigma#",
    "erf": r"\operatorname{erf}#",
    "erfc": r"\operatorname{erfc}#",
    "digamma": r"\psi#",
    "sign": r"\operatorname{sgn}#",
    "maximum": r"\max#",
    "minimum": r"\min#",
    "lgamma": r"\log\Gamma#",
    "log1p": r"\log\left(1 + @\right)",
    "expm1": r"e^{@} - 1",
    "exp": r"e^{@}",
    "exp2": r"2^{@}",
    "abs": r"\left|@\right|",
    "floor": r"\left\lfloor @ \right\rfloor",
    "ceil": r"\left\lceil @ \right\rceil",
}

GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau "
    "upsilon phi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega".split()
)


def symbol(name: str) -> str:
    r"""A leaf's name: ``alpha`` as a Greek letter, ``x_1`` and ``x1`` with a subscript."""
    if "\\" in name or "{" in name or "^" in name:
        return name
    found = re.fullmatch(r"([A-Za-z]+?)_?(\d+)|([A-Za-z]+)_(\w+)", name)
    if found is None:
        return _word(name)
    base, below = (found[1], found[2]) if found[1] else (found[3], found[4])
    return f"{_word(base)}_{{{below if below.isdigit() else _word(below)}}}"


def _word(name: str) -> str:
    if name in GREEK:
        return f"\\{name}"
    return name if len(name) == 1 else rf"\mathrm{{{escaped(name)}}}"


def wordy(name: str) -> str:
    """A word as an operator name."""
    return rf"\operatorname{{{escaped(name)}}}"


def escaped(name: str) -> str:
    """Text that LaTeX would take for commands, made plain."""
    return re.sub(r"([_#%&$])", r"\\\1", name)
