"""Elementary and special functions as vector IR, for float32 and float64 at any width.

Every function is a body of plain LLVM instructions: no library call, no fast-math flag, the
same operations on every lane and at every width, so that results have the same bits whether a
body is emitted inline (`emit`), called (`call`), one lane wide or sixteen. Machines with AVX-512
have faster forms of some functions (tables in registers, see `avx512`), within the same bounds but
with bits of their own; the portable forms have the same bits on any machine.

Two structures:

* `Kernel`: names of a body on `notation.Value`s, its argument count, and of a body on doubles that
  float32 lanes go through, for functions whose float32 form would miss its bound: the short form of
  `floatlanes`, or the full body (`_widened`). A module is loaded when a body of it is needed.
* `KERNELS`: name -> `Kernel`. The error bounds are stated, and asserted, in the test table.

Start at `emit`; the bodies are in the modules named after their families.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from symgrad.codegen import ir
from symgrad.codegen.vmath.notation import Value


class Kernel(NamedTuple):
    """The body of a function, and what float32 lanes use instead if `float_body` is set.

    Bodies are written ``module.function``.
    """

    body: str
    arity: int = 1
    float_body: str | None = None


def _widened(body: str) -> Kernel:
    return Kernel(body, float_body=body)


def _body(name: str) -> Callable[..., Value]:
    module, _, function = name.partition(".")
    found: Any = getattr(import_module(f"{__name__}.{module}"), function)
    return found


KERNELS: dict[str, Kernel] = {
    "exp": Kernel("exponential.exp"),
    "exp2": Kernel("exponential.exp2"),
    "expm1": Kernel("exponential.expm1"),
    "sigmoid": Kernel("exponential.sigmoid", float_body="floatlanes.sigmoid"),
    "softplus": Kernel("logarithm.softplus", float_body="floatlanes.softplus"),
    "log": Kernel("logarithm.log"),
    "log2": Kernel("logarithm.log2", float_body="floatlanes.log2"),
    "log10": Kernel("logarithm.log10", float_body="floatlanes.log10"),
    "log1p": Kernel("logarithm.log1p"),
    "sin": Kernel("trigonometric.sin"),
    "cos": Kernel("trigonometric.cos"),
    "tan": Kernel("trigonometric.tan", float_body="floatlanes.tan"),
    "asin": Kernel("inversetrigonometric.asin", float_body="floatlanes.asin"),
    "acos": Kernel("inversetrigonometric.acos", float_body="floatlanes.acos"),
    "atan": Kernel("inversetrigonometric.atan", float_body="floatlanes.atan"),
    "atan2": Kernel("inversetrigonometric.atan2", 2, "floatlanes.atan2"),
    "sinh": Kernel("hyperbolic.sinh", float_body="floatlanes.sinh"),
    "cosh": Kernel("hyperbolic.cosh", float_body="floatlanes.cosh"),
    "tanh": Kernel("hyperbolic.tanh"),
    "asinh": _widened("hyperbolic.asinh"),
    "acosh": _widened("hyperbolic.acosh"),
    "atanh": _widened("hyperbolic.atanh"),
    "erf": Kernel("errorfunction.erf"),
    "erfc": Kernel("errorfunction.erfc"),
    "erfinv": _widened("errorfunction.erfinv"),
    "pow": Kernel("floatlanes.pow_of_kind", 2),
    "lgamma": _widened("gamma.lgamma"),
    "digamma": _widened("gamma.digamma"),
}

NAMES: frozenset[str] = frozenset(KERNELS)


def symbol(name: str, kind: str, width: int) -> str:
    """The symbol of the noinline version, e.g. ``sg_exp_v8f64``."""
    suffix = {"double": "f64", "float": "f32"}[kind]
    return f"sg_{name}_v{width}{suffix}"


def emit(f: ir.Function, name: str, *args: ir.Val) -> ir.Val:
    """Emit a function's body inline, at the current point of `f`.

    Parameters
    ----------
    f : ir.Function
        Some bodies (sin, cos, tan) open new basic blocks: afterwards `f.block` names the block
        that the result lives in.
    name : str
        One of `NAMES`.
    *args : ir.Val
        Of one kind (``double`` or ``float``) and one width.

    Returns
    -------
    ir.Val
        Of the same kind and width.

    Raises
    ------
    ValueError
        Unknown name, wrong number of arguments, or arguments that are not alike.
    """
    kernel = _kernel(name, args)
    values = [Value(f, a) for a in args]
    if kernel.float_body is not None and args[0].kind == "float":
        wide = [v.cast("fpext", "double") for v in values]
        return _body(kernel.float_body)(*wide).cast("fptrunc", "float").val
    return _body(kernel.body)(*values).val


def _kernel(name: str, args: tuple[ir.Val, ...]) -> Kernel:
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise ValueError(f"vmath: no function of this name (got {name!r}); use one of {known}")
    kernel = KERNELS[name]
    types = [a.type for a in args]
    if len(args) != kernel.arity or len(set(types)) != 1 or args[0].kind not in ir.FLOAT_BITS:
        raise ValueError(
            f"{name}: takes {kernel.arity} float or double argument(s) of one type "
            f"(got {', '.join(types) or 'none'}); convert or splat them first"
        )
    return kernel


def call(f: ir.Function, name: str, *args: ir.Val) -> ir.Val:
    """Emit a call of the noinline version, declared in the function's module.

    The bits are those of `emit`. The caller provides the symbol: `define` in the same module, or
    an address given to the linker.
    """
    _kernel(name, args)
    kind, width = args[0].kind, args[0].width
    result = f.call(symbol(name, kind, width), (kind, width), args, "nounwind")
    assert result is not None
    return result


def define(module: ir.Module, name: str, kind: str, width: int) -> str:
    """Add the noinline version of a function to a module.

    Parameters
    ----------
    module : ir.Module
    name : str
        One of `NAMES`.
    kind : str
        ``double`` or ``float``.
    width : int

    Returns
    -------
    str
        Its symbol.
    """
    target = symbol(name, kind, width)
    if target not in module.functions:
        arity = KERNELS[name].arity if name in KERNELS else 1
        arguments = [(f"x{i}", kind, width) for i in range(arity)]
        f = ir.Function(module, target, arguments, (kind, width), "noinline nounwind")
        f.ret(emit(f, name, *f.arguments))
        f.finish()
    return target


def sincos(f: ir.Function, x: ir.Val) -> tuple[ir.Val, ir.Val]:
    """Emit sine and cosine with one argument reduction, bits as of each alone."""
    from symgrad.codegen.vmath import trigonometric

    sine, cosine = trigonometric.sincos(Value(f, x))
    return sine.val, cosine.val
