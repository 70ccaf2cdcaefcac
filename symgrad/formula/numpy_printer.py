"""How each head is written in NumPy source; the rest is as in `symgrad.formula.text`.

Start reading at `WRITE`.
"""

from __future__ import annotations

from symgrad.formula.text import ATOM, UNARY, Printer, Write, Written
from symgrad.formula.text import WRITE as TEXT
from symgrad.formula.tree import Term

FUNCTIONS = {
    **{
        name: f"np.{name}"
        for name in (
            "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh abs sign floor ceil "
            "trunc maximum minimum remainder hypot copysign fmod logaddexp cumsum cumprod"
        ).split()
    },
    **{a: f"np.arc{a[1:]}" for a in ("asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh")},
    "round": "np.round",
    "erf": "special.erf",
    "erfc": "special.erfc",
    "erfinv": "special.erfinv",
    "lgamma": "special.gammaln",
    "digamma": "special.digamma",
    "sigmoid": "special.expit",
    "ndtri": "special.ndtri",
    "i0": "special.i0",
    "i1": "special.i1",
}
"""Functions that NumPy and SciPy have; others are spelled out, or cannot be exported."""
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "or": "any", "and": "all"}


def _call(p: Printer, t: Term) -> Written:
    inside = ", ".join(p.of(a, 0) for a in t.args)
    if t.data in FUNCTIONS:
        return f"{FUNCTIONS[t.data]}({inside})", ATOM
    if t.data in ("bool", "int8", "int16", "int32", "int64", "uint8"):
        return f"np.asarray({inside}).astype(np.{t.data}{'_' if t.data == 'bool' else ''})", ATOM
    return _refused(p, t)


def _refused(p: Printer, t: Term) -> Written:
    name = t.data if isinstance(t.data, str) else t.data[0]
    raise NotImplementedError(
        f"to_numpy_source: no counterpart in NumPy or SciPy (got {name}); write it with other ops"
    )


def _number(p: Printer, t: Term) -> Written:
    if t.data != t.data or t.data in (float("inf"), float("-inf")):
        return f"float('{t.data}')", ATOM
    shown = repr(t.data)
    return shown, UNARY if shown.startswith("-") else ATOM


def _reduce(p: Printer, t: Term) -> Written:
    combine, dims, shape, keepdim = t.data
    name = REDUCTIONS.get(combine, combine)
    axes = tuple(d - len(shape) for d in dims)
    axis = axes[0] if len(axes) == 1 else axes
    kept = ", keepdims=True" if keepdim else ""
    return f"np.{name}({p.of(t.args[0], 0)}, axis={axis}{kept})", ATOM


def _permute(p: Printer, t: Term) -> Written:
    lead = p.rank[t.args[0]] - len(t.data)
    order = (*range(lead), *(d + lead for d in t.data))
    return f"np.transpose({p.of(t.args[0], 0)}, {order})", ATOM


def _reshape(p: Printer, t: Term) -> Written:
    return f"np.reshape({p.of(t.args[0], 0)}, {tuple(t.data[1])})", ATOM


def _expand(p: Printer, t: Term) -> Written:
    (x,) = t.args
    inside = p.of(x, 0) if p.rank[x] <= len(t.data) else p.exact(x, x.shape)
    return f"np.broadcast_to({inside}, {tuple(t.data)})", ATOM


def _embed(p: Printer, t: Term) -> Written:
    size, starts, steps, shape = t.data
    if any(k != 1 and n > 1 for k, n in zip(steps, shape, strict=True)):
        return _refused(p, t.table.make("call", t.args, "embed"))
    around = [(s, full - s - n) for s, n, full in zip(starts, shape, size, strict=True)]
    inside = p.of(t.args[0], 0)
    if p.rank[t.args[0]] != len(shape):
        inside = f"np.reshape({inside}, {tuple(shape)})"
    return f"np.pad({inside}, {around})", ATOM


def _flip(p: Printer, t: Term) -> Written:
    return f"np.flip({p.of(t.args[0], 0)}, {t.data})", ATOM


def _logic(p: Printer, t: Term) -> Written:
    inside = ", ".join(p.of(a, 0) for a in t.args)
    return f"np.logical_{t.data}({inside})", ATOM


def _symbol(p: Printer, t: Term) -> Written:
    name = t.data[0]
    return {"pi": "np.pi", "e": "np.e"}.get(name, f"np.{name}" if "(" in name else name), ATOM


WRITE: dict[str, Write] = {
    **TEXT,
    "call": _call,
    "number": _number,
    "symbol": _symbol,
    "reduce": _reduce,
    "permute": _permute,
    "reshape": _reshape,
    "expand": _expand,
    "embed": _embed,
    "flip": _flip,
    "logic": _logic,
    "opaque": _refused,
}
