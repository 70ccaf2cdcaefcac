"""Formulas: what is printed, what it means, and that it stays short and fast.

Printed text is compared with what a person would write, and evaluated with NumPy against each
op's reference; SymPy forms of our derivatives are compared with SymPy's derivatives of our forms.
"""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys

import numpy as np
import pytest
import sympy as sp
from scipy import special

from symgrad import dtypes
from symgrad.calculus import pullback
from symgrad.expr import ancestors
from symgrad.family import Elementwise
from symgrad.formula.latex import latex
from symgrad.formula.source import to_c, to_numpy_source
from symgrad.formula.sympy_form import to_sympy
from symgrad.formula.sympy_reader import from_sympy
from symgrad.formula.text import text
from symgrad.op import REGISTRY, input_node
from symgrad.ops.arithmetic import cast, eq, keep, where
from symgrad.ops.choice import maximum
from symgrad.ops.contract import matmul
from symgrad.ops.extrema import amax
from symgrad.ops.movement import expand, flip, full, narrow_step, permute, reshape
from symgrad.ops.power import pow  # noqa: A004
from symgrad.ops.reduce import sum  # noqa: A004
from symgrad.ops.statistics import mean
from symgrad.ops.transcendental import cos, exp, log, log1p, sin, sqrt, tanh
from symgrad.testing.samples import Subject, call, draw, identity, nodes, sample_cases, truth

F64 = dtypes.float64


def leaf(*shape, grad=True):
    return input_node(shape, F64, np.ones(shape), grad=grad)


x, y, w = leaf(), leaf(), leaf()
u, v, A, B, C = leaf(3), leaf(4), leaf(3, 4), leaf(4, 5), leaf(2, 3, 4)
NAMES = {x: "x", y: "y", w: "w", u: "u", v: "v", A: "A", B: "B", C: "C"}


def grad(result, leaf):
    (found,) = pullback([result], [full(1.0, result.shape, F64)], [leaf])
    return found


def part(t, start, stop):
    return narrow_step(t, starts=(start,), steps=(1,), counts=(stop - start,))


def column(t):
    return reshape(t, (*t.shape, 1))


def wood(t):
    """The function of H. H. Rosenbrock, Comput. J. 3 (1960), in its usual chain."""
    return sum(100.0 * (part(t, 1, 4) - part(t, 0, 3) ** 2) ** 2 + (1.0 - part(t, 0, 3)) ** 2)


GOLDEN = {
    "sum": (x * y + sin(x), "x*y + sin(x)"),
    "gradient of a sum": (grad(x * y + sin(x), x), "cos(x) + y"),
    "square": (x * x, "x**2"),
    "powers collect": (x * x * x * sqrt(x) / x, "x**2.5"),
    "numbers fold": (2.0 * (3.0 * x), "6*x"),
    "like terms collect": (x + x * 2.0 - y + x * y * 3.0 - y * x, "3*x - y + 2*x*y"),
    "opposite terms cancel": (x - y + y, "x"),
    "negated difference": (-(x - y), "y - x"),
    "negated sum": (-(x + y), "-(x + y)"),
    "negated sum in a product": ((-(x + y)) * w, "-w*(x + y)"),
    "constant first when the rest is negative": (1.0 - x * x, "1 - x**2"),
    "constant last": (2.0 + exp(x), "exp(x) + 2"),
    "quotient": (x * y / (w * (x + 1.0)), "x*y/(w*(x + 1))"),
    "third as a factor": (x * (2.0 / 3.0), "2*x/3"),
    "inverse root": (1.0 / sqrt(x), "1/sqrt(x)"),
    "general power": (pow(x, y), "x**y"),
    "root of a square stays": (sqrt(x * x), "sqrt(x**2)"),
    "parentheses of powers": ((-x) ** 3 * (x + y) ** 2, "-x**3*(x + y)**2"),
    "odd function": (sin(-x) + cos(-x), "cos(x) - sin(x)"),
    "pi": (sin(x * math.pi), "sin(pi*x)"),
    "names of torch are kept": (log1p(x) + tanh(x), "log1p(x) + tanh(x)"),
    "gradient of a gaussian": (grad(exp(-x * x) * sin(y), x), "-2*x*sin(y)*exp(-x**2)"),
    "gradient of a quotient": (grad(x / y, y), "-x/y**2"),
    "second derivative": (grad(grad(x**3 * y, x), x), "6*x*y"),
    "gradient of tanh": (grad(tanh(x * w), x), "w*(1 - tanh(x*w)**2)"),
    "gradient of a choice": (grad(where(x > 0, x * x, sin(x)), x), "where(x > 0, 2*x, cos(x))"),
    "conditions": (
        where((x > 0) & ~(y <= 1) | eq(x, y), x, 0.0),
        "where(((x > 0) & (y > 1)) | (x == y), x, 0)",
    ),
    "nested masks": (keep(x > 0, keep(y > 0, x)), "where((x > 0) & (y > 0), x, 0)"),
    "mask as a number": (cast(x > 0, dtype=F64) * y, "y*(x > 0)"),
    "clamped": (maximum(x, 0.0) * 1.0 + 0.0, "maximum(x, 0)"),
    "product of matrices": (matmul(A, B), "A @ B"),
    "matrix and vector": (matmul(A, v), "A @ v"),
    "batched product": (matmul(C, B), "C @ B"),
    "chain of products": (matmul(matmul(u, A), B), "u @ A @ B"),
    "product in a product": (2.0 * matmul(A, -v) * u, "-2*u*(A @ v)"),
    "transposed transpose": (permute(permute(A, (1, 0)) * 2.0, (1, 0)), "2*A"),
    "quadratic form": (grad(matmul(u, matmul(A, v)), v), "A.T @ u"),
    "least squares": (grad(sum((matmul(A, v) - u) ** 2), v), "2*(A.T @ (A @ v - u))"),
    "outer product": (grad(matmul(u, matmul(A, v)), A), "v*u[:, None]"),
    "gradient of a layer": (grad(sum(tanh(matmul(A, B))), B), "A.T @ (1 - tanh(A @ B)**2)"),
    "gradient of a sum of a product": (grad(sum(matmul(A, B)), A), "sum(B, dim=1)"),
    "gradient through a batch": (grad(sum(matmul(C, B)), C), "sum(B, dim=1)"),
    "along an axis": (sum(A * v, 1), "sum(v*A, dim=1)"),
    "kept axis": (A / sum(A, 1, True), "A/sum(A, dim=1, keepdim=True)"),
    "average": (sum(A) / 12.0, "mean(A)"),
    "sum of a repeated number": (sum(expand(x, (3, 4))), "12*x"),
    "gradient of an average": (grad(sum(A * A) / 12.0, A), "A/6"),
    "softmax": (exp(A) / sum(exp(A), 1, True), "softmax(A, 1)"),
    "pairwise differences": (sum((column(v) - v) ** 2), "sum((v[:, None] - v)**2)"),
    "slices": (part(v, 1, 3) * part(v, 0, 2), "v[1:3]*v[:2]"),
    "slice of a slice": (part(part(v, 1, 4), 1, 3), "v[2:]"),
    "element": (reshape(part(v, 2, 3), ()), "v[2]"),
    "reshaped and back": (reshape(sin(reshape(A, (12,))), (3, 4)), "sin(A)"),
    "gradient of a slice": (grad(sum(part(v, 1, 3) ** 2), v), "2*pad(v[1:3], (1, 1))"),
    "rosenbrock": (wood(v), "sum(100*(v[1:] - v[:3]**2)**2 + (1 - v[:3])**2)"),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_text_reads_as_written_by_hand(case):
    expr, expected = GOLDEN[case]
    assert text(expr, NAMES) == expected


LATEX = {
    "fraction": (x * y / (w + 1.0), r"\frac{x y}{w + 1}"),
    "functions": (tanh(x) ** 2 + exp(-y), r"\tanh^{2}\left(x\right) + e^{-y}"),
    "root": (sqrt(x + 1.0) * 0.5, r"0.5 \sqrt{x + 1}"),
    "known constant": (exp(x) * (2 / math.sqrt(math.pi)), r"\frac{2 e^{x}}{\sqrt{\pi}}"),
    "cases": (
        where(x >= 0, x, -x),
        r"\begin{cases} x & \text{if } x \ge 0 \\ -x & \text{otherwise} \end{cases}",
    ),
    "matrices": (grad(sum((matmul(A, v) - u) ** 2), v), r"2 A^{\top} \left(A v - u\right)"),
    "elementwise beside matrices": (
        u * sin(u) * matmul(A, v),
        r"u \odot \sin\left(u\right) \odot \left(A v\right)",
    ),
    "total": (sum(v**2), r"\sum_{i} v_{i}^{2}"),
    "average": (mean(A), r"\frac{1}{12} \sum_{ij} A_{ij}"),
    "along": (sum(A * v, 1), r"\sum_{j} v_{j} A_{ij}"),
    "normalised": (A / sum(A, 1, True), r"\frac{A_{ij}}{\sum_{k} A_{ik}}"),
    "outer": (grad(matmul(u, matmul(A, v)), A), r"v_{j} u_{i}"),
    "pairwise": (sum((column(v) - v) ** 2), r"\sum_{ij} \left(v_{i} - v_{j}\right)^{2}"),
    "shifted": (sum(part(v, 1, 4) * part(v, 0, 3)), r"\sum_{i} v_{i+1} v_{i}"),
    "norm": (sum(A * permute(permute(A, (1, 0)), (1, 0))), r"\sum_{ij} A_{ij}^{2}"),
}


@pytest.mark.parametrize("case", LATEX)
def test_latex_reads_as_written_by_hand(case):
    expr, expected = LATEX[case]
    assert latex(expr, NAMES) == expected


def test_leaves_without_names_are_numbered_and_numbers_print_as_numbers():
    a, b, scale = leaf(), leaf(3), input_node((), F64, np.array(2.5))
    weights = leaf(3, grad=False)
    assert text(a * b + scale * weights) == "x0*x1 + 2.5*c0"


def test_intermediate_expressions_print_by_their_name():
    hidden = tanh(x * w)
    assert text(hidden * hidden + x, {**NAMES, hidden: "h"}) == "h**2 + x"
    assert text(hidden + 1.0, {id(hidden): "h"}) == "h + 1"


def test_greek_and_numbered_names_become_latex_symbols():
    assert latex(x * y + w, {x: "alpha", y: "x1", w: "w_out"}) == r"\alpha x_{1} + w_{\mathrm{out}}"


# -- what the text means ----------------------------------------------------------------


def reduction(function):
    def reduced(a, dim=None, keepdim=False):
        return function(np.asarray(a), axis=dim, keepdims=keepdim)

    return reduced


def along(function):
    return lambda a, dim: function(a, axis=dim)


def padded(a, around):
    pairs = around if isinstance(around[0], tuple) else (around,)
    a = np.asarray(a)
    return np.pad(a.reshape((1,) * (len(pairs) - a.ndim) + a.shape), pairs)


WORDS = {
    **{n: getattr(np, n) for n in dir(np) if isinstance(getattr(np, n), np.ufunc)},
    **{n: getattr(special, n) for n in ("erf", "erfc", "erfinv", "digamma", "xlogy", "xlog1py")},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "lgamma": special.gammaln,
    "sigmoid": special.expit,
    "softmax": lambda a, dim: special.softmax(a, axis=dim),
    "softplus": lambda a: np.logaddexp(a, 0),
    "remainder": lambda a, b: a - np.floor(a / b) * b,
    "sign": lambda a: np.sign(np.asarray(a) * 1.0),
    "polygamma": special.polygamma,
    "sum": reduction(np.sum),
    "mean": reduction(np.mean),
    "prod": reduction(np.prod),
    "amax": reduction(np.max),
    "amin": reduction(np.min),
    "any": reduction(np.any),
    "all": reduction(np.all),
    "argmax": reduction(np.argmax),
    "argmin": reduction(np.argmin),
    "where": np.where,
    "ones": np.ones,
    "zeros": np.zeros,
    "arange": np.arange,
    "expand": np.broadcast_to,
    "reshape": np.reshape,
    "permute": np.transpose,
    "flip": np.flip,
    **{n: along(getattr(np, n)) for n in ("cumsum", "cumprod")},
    "cat": lambda *a, dim: np.concatenate(a, dim),
    "diagonal": lambda a, offset, dim1, dim2: np.diagonal(a, offset, dim1, dim2),  # noqa: PLW0108
    "pad": padded,
    "pi": math.pi,
    "inf": math.inf,
    "nan": math.nan,
}


def meaning(formula, arrays):
    """The value of a printed formula, or None if it has words that NumPy lacks."""
    scope = {**WORDS, **arrays, "__builtins__": {}}
    *lines, last = formula.splitlines()
    try:
        with np.errstate(all="ignore"):
            exec("\n".join([*lines, f"result = {last}"]), scope)
    except (NameError, SyntaxError):
        return None
    return np.asarray(scope["result"])


def special_values(drawn):
    """Whether a sample is about NaN, infinities or zeros, which algebra for reading may change."""
    return any(a.dtype.kind == "f" and not np.all(np.isfinite(a) & (a != 0)) for a in drawn.arrays)


@pytest.mark.parametrize("part", list(sample_cases(False)), ids=identity)
def test_printed_text_means_what_the_op_computes(part):
    subject, number, floating = part
    drawn = draw(subject, number, floating)
    leaves = nodes(drawn.arrays)
    names = {n: f"a{k}" for k, n in enumerate(leaves)}
    arrays = {f"a{k}": a for k, a in enumerate(drawn.arrays)}
    for expr, expected in zip(
        call(subject, drawn, leaves), truth(subject, drawn, True), strict=False
    ):
        assert latex(expr, names)
        value = meaning(text(expr, names, limit=None), arrays)
        if value is None or subject.family in ("library", "create") or special_values(drawn):
            continue
        value = value.reshape(value.shape[max(value.ndim - expr.ndim, 0) :])
        kind = complex if expected.dtype.kind == "c" else float
        shown = np.broadcast_to(value, expr.shape).astype(kind)
        np.testing.assert_allclose(shown, expected.astype(kind), rtol=3e-7, atol=1e-9)


SMOOTH = {
    "least squares": (lambda a, b, c: sum((matmul(a, c) - b) ** 2), (3, 4), (3,), (4,)),
    "softmax": (lambda a, b: sum(b * exp(a) / sum(exp(a), 1, True)), (3, 4), (4,)),
    "standardised": (
        lambda a, b: sum(b * (a - mean(a, 1, True)) / sqrt(mean(a * a, 1, True))),
        (3, 4),
        (4,),
    ),
    "pairwise": (lambda a, b: sum(sqrt((column(a) - b) ** 2 + 1.0)), (3,), (4,)),
    "two layers": (lambda a, b, c: sum(matmul(tanh(matmul(a, b)), c)), (2, 3, 4), (4, 5), (5,)),
    "batches": (lambda a, b: sum(sin(matmul(a, b))), (2, 3, 4), (2, 4, 3)),
    "moved": (lambda a: sum(sin(flip(permute(a, (1, 0)), (0,))) * permute(a, (1, 0))), (3, 4)),
    "rosenbrock": (wood, (4,)),
    "reshaped": (lambda a, b: sum(matmul(reshape(a, (2, 6)), b) ** 2), (3, 4), (6,)),
}


@pytest.mark.parametrize("case", SMOOTH)
def test_printed_gradient_is_the_difference_quotient_of_the_printed_function(case):
    function, *shapes = SMOOTH[case]
    rng = np.random.default_rng(7)
    leaves = [leaf(*s) for s in shapes]
    names = {n: f"a{k}" for k, n in enumerate(leaves)}
    values = {f"a{k}": rng.uniform(0.2, 1.0, s) for k, s in enumerate(shapes)}
    result = function(*leaves)
    formula = text(result, names, limit=None)
    for node in leaves:
        name = names[node]
        found = meaning(text(grad(result, node), names, limit=None), values)
        found = np.broadcast_to(found, node.shape)
        for place in np.ndindex(node.shape):
            step = np.zeros(node.shape)
            step[place] = 1e-5
            above = meaning(formula, {**values, name: values[name] + step})
            below = meaning(formula, {**values, name: values[name] - step})
            assert found[place] == pytest.approx((above - below).item() / 2e-5, rel=1e-6, abs=1e-8)


# -- SymPy ------------------------------------------------------------------------------

SCALAR = [
    o
    for o in REGISTRY.values()
    if isinstance(o, Elementwise) and o.rule in ("partials", "select") and not o.conditions
]


def fifty_digits(formula, point):
    return complex(formula.subs(point).evalf(50, maxn=200))


@pytest.mark.parametrize("op", SCALAR, ids=lambda o: o.name)
def test_sympy_derivative_of_the_form_is_the_form_of_our_derivative(op):
    every = [draw(Subject(op), k, F64) for k in range(len(Subject(op).samples))]
    drawn = next(d for d in every if all(a.size for a in d.arrays))
    leaves = [leaf() for _ in drawn.arrays]
    args, attrs = drawn.arguments(leaves)
    result = op(*args, **attrs)
    symbols = sp.symbols(f"a:{len(leaves)}", real=True)
    names = dict(zip(leaves, symbols, strict=True))
    form = to_sympy(result, names)
    rng = np.random.default_rng(3)
    # Samples avoid poles and kinks; dyadic numbers are exact in SymPy too.
    point = {
        s: sp.Rational(round(float(rng.choice(a.ravel())) * 1024), 1024)
        for s, a in zip(symbols, drawn.arrays, strict=True)
    }
    for node, symbol in names.items():
        ours = grad(result, node)
        expected = sp.diff(form, symbol)
        if ours is None or expected.has(sp.Derivative, sp.Subs):
            continue
        found = fifty_digits(to_sympy(ours, names), point)
        assert found == pytest.approx(fifty_digits(expected, point), rel=1e-12, abs=1e-12)


def test_gradient_in_sympy_equals_sympy_diff():
    X, W = sp.symbols("x w", real=True)
    result = tanh(w * x) * x**2
    g = grad(result, x)
    expected = sp.diff(sp.tanh(W * X) * X**2, X)
    assert sp.simplify(to_sympy(g, {x: X, w: W}) - expected) == 0
    assert sp.simplify(to_sympy(grad(g, w), {x: X, w: W}) - sp.diff(expected, W)) == 0


def test_vectors_of_one_shape_stand_as_scalars_in_sympy():
    a, b = leaf(10), leaf(10)
    s, t = sp.symbols("a b", real=True)
    assert to_sympy(a * b + sin(a), {a: "a", b: "b"}) == s * t + sp.sin(s)
    assert to_sympy(grad(sum(a * b + sin(a)), a), {a: s, b: t}) == t + sp.cos(s)


def test_named_arrays_of_symbols_are_written_out():
    M = sp.MatrixSymbol("M", 3, 4)
    t = sp.symbols("t:4", real=True)
    s = sp.symbols("s:3", real=True)
    form = to_sympy(matmul(u, matmul(A, v)), {A: M, v: list(t), u: sp.Matrix(s)})
    expected = (sp.Matrix([s]) * M.as_explicit() * sp.Matrix(t))[0]
    assert sp.expand(form - expected) == 0
    gradient = to_sympy(grad(sum(sin(v) * v), v), {v: t})
    assert list(gradient) == [sp.sin(a) + a * sp.cos(a) for a in t]


def test_shared_parts_become_replacements_in_linear_number():
    X = sp.Symbol("x", real=True)
    z = x
    for _ in range(60):
        z = sin(z) * z + z
    replacements, (result,) = to_sympy(grad(z, x), {x: X}, cse=True)
    assert len(replacements) <= 300
    values = {X: 0.3}
    for symbol, form in replacements:
        values[symbol] = float(form.xreplace({k: sp.Float(n) for k, n in values.items()}))
    found = float(result.xreplace({k: sp.Float(n) for k, n in values.items()}))
    value, slope = 0.3, 1.0
    for _ in range(60):
        value, slope = (
            math.sin(value) * value + value,
            slope * (math.cos(value) * value + math.sin(value) + 1),
        )
    assert found == pytest.approx(slope, rel=1e-9)


def test_deep_expression_in_sympy_asks_for_cse():
    z = x
    for _ in range(1500):
        z = sin(z)
    with pytest.raises(RecursionError, match="cse=True"):
        to_sympy(z, {x: "x"})
    replacements, _ = to_sympy(z, {x: "x"}, cse=True)
    assert len(replacements) < 150


X, Y = sp.symbols("x y", real=True)
ROUND = [
    X * Y + sp.sin(X),
    (X**3 + 2 * X) / (1 + X**2) - sp.cos(Y) * X,
    sp.exp(-(X**2)) * sp.sqrt(Y) / 7,
    sp.Piecewise((sp.log(-X), X < 0), (1 / X - 1, X > 2), (sp.sqrt(X), True)),
    sp.Max(X, Y, 3) - sp.Min(X, 2) + sp.Abs(X) * sp.sign(Y),
    sp.atan2(Y, X) + sp.erf(X) + sp.tanh(Y) ** 2 + X**Y,
    sp.sec(X) + sp.cot(Y) + sp.pi * sp.E + sp.Rational(1, 3) ** sp.Rational(1, 2),
    sp.gamma(X + 3) + sp.loggamma(Y) + sp.factorial(Y),
    sp.Piecewise((1, sp.And(X > 0, Y > 0)), (0, True)) + sp.Heaviside(X),
    sp.factorial(120) / (2**300 * (X + sp.factorial(60))),
    sp.diff(sp.Piecewise((sp.exp(-1 / X), X > 0), (0, True)), X),
]


@pytest.mark.parametrize("form", ROUND, ids=lambda f: str(f)[:40])
def test_expressions_read_from_sympy_have_its_values(form):
    a, b = leaf(), leaf()
    expr = from_sympy(form, {X: a, Y: b})
    for p, q in ((0.7, 1.3), (2.5, 0.4)):
        point = {X: sp.Rational(str(p)), Y: sp.Rational(str(q))}
        expected = float(form.subs(point).evalf(40))
        code = to_numpy_source(expr, {a: "a", b: "b"})
        scope = {}
        exec(code, scope)
        taken = scope["f"].__code__.co_varnames
        values = {k: n for k, n in (("a", np.float64(p)), ("b", np.float64(q))) if k in taken}
        with np.errstate(all="ignore"):
            assert float(scope["f"](**values)) == pytest.approx(expected, rel=1e-13)


def test_equal_parts_read_from_sympy_are_one_node():
    a = leaf()
    first, second = from_sympy([sp.sin(X) + 1, sp.sin(X) * 2], {X: a})
    assert set(first.args) & set(second.args)


def test_constant_read_from_sympy_has_the_dtype_of_the_symbols():
    expr = from_sympy(sp.diff(X**2, X, 2), {X: leaf(5)})
    assert expr.shape == () and expr.dtype is F64 and expr.value == 2.0


def test_sympy_function_without_counterpart_is_named():
    with pytest.raises(NotImplementedError, match=r"from_sympy: .*got zeta"):
        from_sympy(sp.zeta(X), {X: leaf()})
    with pytest.raises(KeyError, match=r"from_sympy: .*symbol y"):
        from_sympy(X + Y, {X: leaf()})


# -- source -----------------------------------------------------------------------------


def compiled(source, folder, count):
    file = folder / "f.c"
    file.write_text(source)
    library = folder / f"f{count}.so"
    flags = ["-std=c99", "-Wall", "-Werror", "-O1", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(file), "-o", str(library), "-lm"], check=True)

    def run(values):
        out = (ctypes.c_double * count)()
        ctypes.CDLL(str(library)).f((ctypes.c_double * len(values))(*values), out)
        return list(out)

    return run


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_c_source_gives_value_gradient_and_hessian(tmp_path):
    source = to_c(exp(-x * x) * sin(y) + x * y, [x, y], derivatives=2)
    a, b = 0.3, 0.8
    e, s, k = math.exp(-a * a), math.sin(b), math.cos(b)
    mixed = -2 * a * e * k + 1
    first = [e * s + a * b, -2 * a * e * s + b, e * k + a]
    expected = [*first, (4 * a * a - 2) * e * s, mixed, mixed, -e * s]
    assert compiled(source, tmp_path, 7)([a, b]) == pytest.approx(expected, rel=1e-13)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_c_source_writes_small_tensors_out(tmp_path):
    rng = np.random.default_rng(5)
    a, b = rng.random((3, 4)), rng.random(4)
    source = to_c([tanh(matmul(A, v)), amax(A, 1), log(where(A > 0.5, A, 1.0))], [A, v])
    expected = [*np.tanh(a @ b), *a.max(1), *np.log(np.where(a > 0.5, a, 1.0)).ravel()]
    assert compiled(source, tmp_path, 18)([*a.ravel(), *b]) == pytest.approx(expected, rel=1e-14)
    source = to_c(sum(v * v), [u, v], derivatives=2)
    expected = [
        b @ b,
        *np.zeros(3),
        *(2 * b),
        *np.zeros((3, 7)).ravel(),
        *np.eye(4, 7, 3).ravel() * 2,
    ]
    assert compiled(source, tmp_path, 57)([*np.ones(3), *b]) == pytest.approx(expected, rel=1e-14)


def test_numpy_source_computes_the_expression():
    rng = np.random.default_rng(6)
    a, b = rng.random((3, 4)), rng.random(4)
    source = to_numpy_source(A / sum(A, 1, True) * exp(v) - mean(A, 0), {A: "a", v: "b"}, name="g")
    scope = {}
    exec(source, scope)
    np.testing.assert_allclose(
        scope["g"](a, b), a / a.sum(1, keepdims=True) * np.exp(b) - a.mean(0)
    )


def test_source_names_the_function_it_lacks():
    expr = REGISTRY["digamma"](x)
    with pytest.raises(NotImplementedError, match=r"to_c: .*got digamma"):
        to_c(expr, [x])


# -- size -------------------------------------------------------------------------------


def test_shared_terms_print_once_each():
    z = x
    for _ in range(60):
        z = sin(z) * z + z
    for result in (z, grad(z, x)):
        lines = text(result, NAMES).splitlines()
        assert len(lines) < 200 and max(map(len, lines)) < 200
        assert lines[0].startswith("t1 = ")
        assert len(latex(result, NAMES)) < 30_000


def test_let_names_avoid_those_of_leaves():
    z = x
    for _ in range(20):
        z = sin(z) * z + z
    lines = text(z, {x: "t1"}).splitlines()
    assert lines[0].startswith("t2 = ") and not any(s.startswith("t1 =") for s in lines)


def test_formula_with_lines_means_the_same():
    z = x * 0.1
    for _ in range(40):
        z = sin(z + y) * z + y
    found = meaning(text(z, NAMES), {"x": 0.3, "y": 0.2})
    expected = 0.3 * 0.1
    for _ in range(40):
        expected = math.sin(expected + 0.2) * expected + 0.2
    assert found == pytest.approx(expected, rel=1e-12)


def test_deep_chain_prints_without_recursion():
    z = x
    for _ in range(20_000):
        z = sin(z)
    before = sys.getrecursionlimit()
    for printed in (text(z, NAMES), latex(z, NAMES), text(grad(z, x), NAMES)):
        assert "more terms" in printed and len(printed) < 200_000
    lines = text(z, NAMES, limit=None).splitlines()
    assert len(lines) > 200 and max(map(len, lines)) < 400
    assert "".join(lines).count("sin(") == 20_000
    assert sys.getrecursionlimit() == before


def test_long_sum_is_cut_with_a_count():
    z = x
    for k in range(5000):
        z = z + sin(x * (k + 1.0))
    assert text(z, NAMES, limit=3) == "x + sin(x) + sin(2*x) + ... (4998 more terms)"
    assert text(z, NAMES, limit=None).count("sin(") == 5000
    assert r"\text{(4998 more terms)}" in latex(z, NAMES, limit=3)


def test_importing_formulas_does_not_import_sympy():
    code = (
        "import sys, symgrad.formula.text, symgrad.formula.latex, symgrad.formula.sympy_form, "
        "symgrad.formula.sympy_reader, symgrad.formula.source; assert 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_printing_changes_no_expression():
    expr = x * 1.0 + 0.0 * y
    before = [(n, n.args, n.attrs) for n in ancestors([expr], lambda n: True)]
    text(expr, NAMES)
    assert before == [(n, n.args, n.attrs) for n in ancestors([expr], lambda n: True)]
