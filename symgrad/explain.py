"""``python -m symgrad explain FILE.py:FUNCTION``: one function's value, formulas, kernels and times.

Structures:

* `Question`: the function, its arguments by name, and which of them are differentiated.
* `NumpyNames`: stands in for symgrad where a function is timed on plain NumPy: each op's name
  gives the op's own NumPy reference, or `math`'s function when all arguments are floats.

Each part of the report is one function of the question that gives lines. Start reading at
`explain`, then `REPORT`.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

import symgrad as sg
from symgrad.interface import public_names
from symgrad.tensor import Tensor
from symgrad.timing import duration, medians

CHECKED_ELEMENTS = 32
"""How many elements of an argument are compared with finite differences."""


class ExplainError(Exception):
    """What the command line asked for cannot be done; the message says what to do instead."""


# -- the question -----------------------------------------------------------------------


def load(target: str) -> Callable[..., Any]:
    """The function that ``FILE.py:FUNCTION`` names.

    Raises
    ------
    ExplainError
        If there is no such file or function, or the file fails to run.
    """
    name, separator, function_name = target.rpartition(":")
    if not separator or not name or not function_name:
        raise ExplainError(f"{target!r} names no function; write FILE.py:FUNCTION")
    path = Path(name)
    if not path.is_file():
        raise ExplainError(f"no file {name!r}; give the path of a Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ExplainError(f"{name!r} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ExplainError(f"running {name!r} failed: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
        found = [v.__name__ for v in own if isinstance(v, FunctionType)]
        raise ExplainError(
            f"{name!r} has no function {function_name!r}; it has {', '.join(found) or 'none'}"
        )
    return inspect.unwrap(function)


def parse_point(text: str) -> dict[str, Any]:
    """The arguments in ``x=1.5,y=[1,2]``: Python literals by name.

    Raises
    ------
    ExplainError
        If it is anything else.
    """
    try:
        call = ast.parse(f"at({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("only name=value pairs")
        return {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ExplainError(
            f"--at {text!r} is no list of name=value pairs; write for example --at x=1.5,y=[1,2]"
        ) from error


@dataclass
class Question:
    """A function at a point.

    Attributes
    ----------
    arrays : dict of str to ndarray
        The floating arguments, in the order of the signature.
    static : dict of str to object
        Arguments that are compiled in: those whose default is an int, bool, str or None.
    """

    function: Callable[..., Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    static: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "function")

    def call(self, *values: Any) -> Any:
        """The function's result, with the floating arguments given in order."""
        return self.function(**dict(zip(self.arrays, values, strict=True)), **self.static)

    def total(self, *values: Any) -> Any:
        """The value as one number: the sum of its elements."""
        made = self.call(*values)
        return made if made.ndim == 0 else made.sum()

    def leaves(self) -> list[Tensor]:
        """The floating arguments as named tensors that record derivatives."""
        return [sg.tensor(a, requires_grad=True, name=k) for k, a in self.arrays.items()]

    def arguments(self) -> list[Any]:
        """The floating arguments as a compiled function takes them: floats and arrays."""
        return [a if a.ndim else a.item() for a in self.arrays.values()]


def ask(function: Callable[..., Any], point: dict[str, Any]) -> Question:
    """Match the given values with the function's parameters.

    Raises
    ------
    ExplainError
        If a parameter has no value, or a value no parameter.
    """
    question = Question(function)
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise ExplainError(
            f"{function!r} does not tell its parameters; name a Python function"
        ) from error
    for name in point:
        if name not in parameters:
            raise ExplainError(
                f"{question.name} has no parameter {name!r}; it takes {', '.join(parameters) or 'none'}"
            )
    missing = []
    for name, parameter in parameters.items():
        default = parameter.default
        if name not in point and default is parameter.empty:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                missing.append(name)
            continue
        value = point.get(name, default)
        if isinstance(default, bool | int | str) or default is None or isinstance(value, str):
            question.static[name] = value
            continue
        try:
            question.arrays[name] = np.array(value, np.float64)
        except (TypeError, ValueError) as error:
            raise ExplainError(
                f"{name}={value!r} is neither a number nor an array of numbers"
            ) from error
    if missing:
        example = ",".join(f"{m}=1.5" for m in missing)
        raise ExplainError(
            f"{question.name} needs {', '.join(missing)}; add for example --at {example}"
        )
    if not question.arrays:
        raise ExplainError(f"{question.name} has no floating argument to differentiate by")
    return question


# -- the report -------------------------------------------------------------------------


def value(question: Question) -> Iterator[str]:
    """The value, and a note if it has several elements."""
    made = question.call(*question.leaves())
    if not isinstance(made, Tensor):
        raise ExplainError(
            f"{question.name} returned {made!r}; it must return one tensor made from its arguments"
        )
    yield repr(made.detach().numpy() if made.ndim else made.item())
    if made.ndim:
        yield "(below: the derivative of the sum of its elements)"


def formula(question: Question) -> Iterator[str]:
    """The value's formula."""
    made: Any = question.call(*question.leaves())
    yield from made.formula().splitlines()


def gradient(question: Question) -> Iterator[str]:
    """The formula of the derivative by each argument."""
    leaves = question.leaves()
    found: Any = sg.autograd.grad(
        question.total(*leaves),
        leaves,
        create_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    for name, derivative in zip(question.arrays, found, strict=True):
        lines = derivative.formula().splitlines()
        yield f"by {name}:  {lines[0]}"
        indent = " " * len(f"by {name}:  ")
        yield from (indent + line for line in lines[1:])


def compiled_value(question: Question) -> Any:
    """The compiled function."""
    return sg.compile(question.call)


def compiled_gradient(question: Question) -> Any:
    """The compiled function of value and derivatives."""

    def both(*values: Any) -> Any:
        for x in values:
            x.requires_grad_()
        total = question.total(*values)
        return total, *sg.autograd.grad(total, values, allow_unused=True, materialize_grads=True)

    return sg.compile(both)


def kernels(question: Question) -> Iterator[str]:
    """The fused loops of value and gradient."""
    compiled = compiled_gradient(question)
    compiled(*question.arguments())
    lines = compiled.schedule().splitlines()
    yield f"value and gradient take {len(lines) - 1} fused step{'s'[: len(lines) != 2]}"
    yield from lines


def differences(question: Question) -> Iterator[str]:
    """How far the derivatives are from central differences of the compiled value."""
    total = sg.compile(question.total)
    derivatives = compiled_gradient(question)(*question.arguments())[1:]
    rng = np.random.default_rng(0)
    for place, name in enumerate(question.arrays):
        exact = np.asarray(derivatives[place])
        chosen = np.arange(exact.size)
        if exact.size > CHECKED_ELEMENTS:
            chosen = rng.choice(exact.size, CHECKED_ELEMENTS, replace=False)
        estimated = np.array(
            [_central(total, question.arguments(), place, k) for k in chosen.tolist()]
        )
        error = np.max(np.abs(estimated - exact.ravel()[chosen]), initial=0.0)
        scale = max(float(np.max(np.abs(exact), initial=0.0)), 1.0)
        among = f" ({len(chosen)} of {exact.size} elements)" if len(chosen) < exact.size else ""
        verdict = "agree" if error <= 1e-5 * scale else "DISAGREE"
        yield f"by {name}:  {verdict}, largest difference {error:.1e}{among}"


def _central(total: Any, arguments: list[Any], place: int, element: int) -> float:
    """A central difference of `total` along one element of one argument."""
    base = np.asarray(arguments[place])
    step = np.cbrt(np.finfo(np.float64).eps) * max(1.0, abs(float(base.flat[element])))
    ends = []
    for sign in (1.0, -1.0):
        moved = base.copy()
        moved.flat[element] += sign * step
        changed = [*arguments]
        changed[place] = moved if base.ndim else moved.item()
        ends.append(float(total(*changed)))
    return (ends[0] - ends[1]) / (2.0 * step)


def times(question: Question) -> Iterator[str]:
    """Time per call: compiled, with the gradient, and the same function on plain NumPy."""
    arguments = question.arguments()
    f, g = compiled_value(question), compiled_gradient(question)
    # The first call of each compiles; what is timed are the calls after it.
    expected = f(*arguments)
    g(*arguments)
    scalars = all(isinstance(a, float) for a in arguments)
    rival = "math" if scalars else "NumPy"
    plain = on_numpy(question, scalars)
    steps = [lambda: f(*arguments), lambda: g(*arguments)]
    try:
        found = plain(*arguments)
        if not np.allclose(found, expected, rtol=1e-6, atol=1e-9, equal_nan=True):
            raise ValueError(f"it gives {found!r}")
        steps.append(lambda: plain(*arguments))
        trouble = ""
    except Exception as error:
        trouble = f"{type(error).__name__}: {error}"
    seconds = medians(steps, 0.2)
    yield f"compiled {duration(seconds[0])}, with its gradient {duration(seconds[1])}"
    if trouble:
        yield f"plain {rival}: does not run this function ({trouble.splitlines()[0]})"
    else:
        yield f"plain {rival} {duration(seconds[2])}: compiled is {seconds[2] / seconds[0]:.2g} times as fast"


# -- the same function on NumPy ---------------------------------------------------------


class NumpyNames:
    """symgrad's names with NumPy's functions behind them."""

    def __init__(self, scalars: bool) -> None:
        self._scalars = scalars
        self._table = public_names()

    def __getattr__(self, name: str) -> Any:
        source = self._table.get(name)
        made = getattr(math, name, None) if self._scalars else None
        made = made or getattr(source, "ref", None) or getattr(np, name, None)
        if made is None:
            raise AttributeError(f"NumPy has no {name}")
        setattr(self, name, made)  # found without this function from now on
        return made


def on_numpy(question: Question, scalars: bool) -> Callable[..., Any]:
    """The question's function with symgrad's names bound to NumPy's functions.

    Functions of the same file that it calls are rebound with it; nothing is run.
    """
    names = NumpyNames(scalars)
    function = question.function
    if not isinstance(function, FunctionType):
        return question.call
    symgrad_functions = {id(v): k for k, v in vars(sg).items() if callable(v)}
    rebound: dict[str, Any] = {}
    for key, thing in function.__globals__.items():
        if thing is sg:
            rebound[key] = names
        elif isinstance(thing, FunctionType) and thing.__globals__ is function.__globals__:
            rebound[key] = _with_globals(thing, rebound)
        elif id(thing) in symgrad_functions and not isinstance(thing, type | ModuleType):
            rebound[key] = getattr(names, symgrad_functions[id(thing)])
        else:
            rebound[key] = thing
    plain = _with_globals(function, rebound)
    static = question.static
    if static or list(question.arrays) != list(inspect.signature(function).parameters):
        order = list(question.arrays)
        return lambda *values: plain(**dict(zip(order, values, strict=True)), **static)
    return plain


def _with_globals(function: FunctionType, names: dict[str, Any]) -> Callable[..., Any]:
    made = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


REPORT: dict[str, Callable[[Question], Iterator[str]]] = {
    "value": value,
    "formula": formula,
    "gradient": gradient,
    "kernels": kernels,
    "differences": differences,
    "time": times,
}


def explain(target: str, point: str = "", show: Callable[[str], Any] = print) -> None:
    """Show everything about one function at one point.

    Parameters
    ----------
    target : str
        ``FILE.py:FUNCTION``.
    point : str
        Arguments as ``x=1.5,y=[1,2]``; those left out take their defaults.
    show : callable
        Gets each line.

    Raises
    ------
    ExplainError
        If the target or the point does not fit.
    """
    question = ask(load(target), parse_point(point))
    at = ", ".join(f"{k} = {_short(a)}" for k, a in question.arrays.items())
    at += "".join(f", {k} = {v!r}" for k, v in question.static.items())
    show(f"{question.name} at {at}")
    for title, part in REPORT.items():
        try:
            lines = list(part(question))
        except ExplainError:
            raise
        except Exception as error:
            raise ExplainError(
                f"{question.name}: {title}: {type(error).__name__}: {error}"
            ) from error
        show("")
        for number, line in enumerate(lines):
            show(f"{'' if number else title:<13}{line}")


def _short(array: np.ndarray) -> str:
    if array.size <= 6:
        return str(array.tolist())
    return f"array of shape {array.shape}"
