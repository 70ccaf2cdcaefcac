"""`symgrad.compile`: a function traced once per structure and called natively.

Structure: `Compiled`, what `compile` returns; callable, with `into`, `pointer`, `low_level`, `formula`,
`schedule`, `llvm`, `asm`, `memory` and `report`. It keeps a `symgrad.tracing.Trace` for each structure
of arguments.

Arrays and floats in give arrays and floats out, through an entry of machine code that checks
its arguments and runs the program without any Python. Tensors in give tensors out; when one of
them records derivatives, the traced graph is recorded again on them, so that derivatives flow
through. Start reading at `Compiled._dispatch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from symgrad import dtypes
from symgrad.capture import tensor_of
from symgrad.expr import Expr
from symgrad.locks import RenewedLock
from symgrad.nesting import flatten, follow, size, text, unflatten
from symgrad.op import INPUT, STATE, grad_mode
from symgrad.schedule.complex_parts import as_parts
from symgrad.tensor import Tensor, from_array
from symgrad.tracing import STATIC, Trace, is_dynamic, kind_of, leaf_of, uncollected

if TYPE_CHECKING:
    from symgrad.codegen.measure import Memory, Report


def _fitting(out: Any, trace: Trace) -> list[np.ndarray]:
    """The arrays of `out`, one per result of a trace, if they can take the results."""
    leaves: list[Any] = []
    fits = follow(out, trace.form, leaves)
    for k, value in trace.fixed.items() if fits else ():
        fits = fits and type(leaves[k]) is type(value) and leaves[k] == value
    if not fits:
        given, form = flatten(out)
        shown = ["*" if is_dynamic(x) else repr(x) for x in given]
        words = [repr(trace.fixed[k]) if k in trace.fixed else "*" for k in range(size(trace.form))]
        raise TypeError(
            "into: `out` is not nested as the result is, with an array for each of its tensors "
            f"(got {text(form, shown)}, the result is {text(trace.form, words)}); pass it so"
        )
    found = [leaf for k, leaf in enumerate(leaves) if k not in trace.fixed]
    for number, (array, node) in enumerate(zip(found, trace.outputs, strict=True)):
        which = f"array {number} of `out`" if len(found) > 1 else "`out`"
        if type(array) is not np.ndarray:
            raise TypeError(
                f"into: {which} is no array (got {type(array).__name__}); pass "
                f"numpy.empty({node.shape}, {node.dtype.numpy.name!r})"
            )
        if array.shape != node.shape:
            raise ValueError(
                f"into: {which} has the wrong shape (got {array.shape}, the result has "
                f"{node.shape}); pass numpy.empty({node.shape}, {node.dtype.numpy.name!r})"
            )
        if array.dtype != node.dtype.numpy:
            raise TypeError(
                f"into: {which} has the wrong dtype (got {array.dtype}, the result has "
                f"{node.dtype.numpy.name}); pass numpy.empty({node.shape}, {node.dtype.numpy.name!r})"
            )
        if not array.flags.writeable:
            raise ValueError(f"into: {which} is read-only (got flags.writeable False); pass a copy")
        for other in found[:number]:
            if np.may_share_memory(other, array) and np.shares_memory(other, array):
                raise ValueError(
                    f"into: {which} shares memory with another one (got shapes {other.shape} and "
                    f"{array.shape}); pass arrays of their own"
                )
    return found


class Compiled:
    """A compiled function; made by `symgrad.compile`.

    Call it like the function it was made from.
    """

    def __init__(self, function: Callable[..., Any], small: bool) -> None:
        self._function = self.__wrapped__ = function
        self._small = small
        self._traces: dict[Any, list[Trace]] = {}
        self._lock = RenewedLock()
        self._last: Trace | None = None
        self._entry: Any = None
        self._writer: Callable[..., Any] = self._write
        self.__name__ = getattr(function, "__name__", "compiled")
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__module__ = getattr(function, "__module__", __name__)
        self.__doc__ = function.__doc__

    def __reduce__(self) -> Any:
        # A decorated function is found by its name, as functions are; others are compiled anew.
        found: Any = sys.modules.get(self.__module__)
        for part in self.__qualname__.split("."):
            found = getattr(found, part, None)
        again = partial(compile, memory="small") if self._small else compile
        return self.__qualname__ if found is self else (again, (self._function,))

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Trace, list[Any]]:
        given, form = flatten((args, kwargs))
        recording = STATE.grad
        given = [leaf_of(value) for value in given]
        kinds = tuple([kind_of(value, recording) for value in given])
        leaves = [v for v, kind in zip(given, kinds, strict=True) if kind[0] != STATIC]
        known = self._traces.setdefault((recording, form, kinds), [])
        trace = next((t for t in known if t.fits()), None)
        if trace is None:
            # Code generation is imported here, so that `import symgrad` stays quick.
            from symgrad.codegen import ahead

            ahead.start()
            with self._lock, uncollected():
                trace = next((t for t in known if t.fits()), None)
                if trace is None:
                    trace = Trace(self._function, form, kinds, self._small)
                    known.append(trace)
        self._last = trace
        return trace, leaves

    def _dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """The road of a call that the native entry did not recognise."""
        if STATE.tracing:
            return self._function(*args, **kwargs)
        trace, leaves = self._trace(args, kwargs)
        tensors = any(isinstance(leaf, Tensor) for leaf in leaves) or bool(trace.captured)
        if not tensors:
            self._bind(trace, args, kwargs)
        return unflatten(trace.form, trace.leaves(self._compute(trace, leaves)))

    __call__ = _dispatch

    def _compute(self, trace: Trace, leaves: list[Any]) -> list[Any]:
        """The results for given leaves; writes what the function changes in place."""
        records = STATE.grad and (
            trace.on_graph or any(t.requires_grad for t in leaves if isinstance(t, Tensor))
        )
        if records:
            nodes = trace.replay(leaves)
            results: list[Any] = [Tensor(n) for n in nodes]
        else:
            arrays = trace.run(leaves)
            if any(isinstance(leaf, Tensor) for leaf in leaves):
                results = [from_array(a) for a in arrays]
            else:
                results = [a.item() if not a.shape else a for a in arrays]
                for k in range(len(trace.outputs), len(arrays)):
                    results[k] = from_array(arrays[k])
        rest = iter(results[len(trace.outputs) :])
        for holder, node in trace.written:
            # A leaf's new value was written under no_grad in the trace, and so it is here.
            with grad_mode(records and node.op is not INPUT):
                tensor_of(holder).write(next(rest).expr())
        for slot, _ in trace.computed:
            slot.grad = next(rest)
        for slot, gradient in trace.given:
            slot.grad = gradient
        return results[: len(trace.outputs)]

    def _bind(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the native entry recognise this structure from now on."""
        from symgrad.codegen.bind import bind_entry

        if kwargs or not trace.native:
            return
        self._entry = bind_entry(self, trace.recipe, args, trace.form, trace.fixed, self._dispatch)

    # -- results in given arrays ------------------------------------------------------

    def into(self, out: Any, *args: Any) -> Any:
        """Call the function and write its results into given arrays.

        Parameters
        ----------
        out : ndarray, or nested list, tuple or dict of them
            As the function's result, with an array for each tensor of it (a 0-d one for a
            number), of its shape and dtype. They may share memory with arguments, not with each
            other.
        *args
            The function's arguments. No derivative is recorded.

        Returns
        -------
        The object `out`. Contiguous arrays are written by the compiled program itself, without
        a copy and without Python.

        Raises
        ------
        TypeError, ValueError
            If `out` does not fit the result, or is read-only.

        Examples
        --------
        >>> import numpy as np, symgrad as sg
        >>> f = sg.compile(lambda x: (x * 2, x.sum()))
        >>> twice, total = np.empty(3), np.empty(())
        >>> _ = f.into((twice, total), np.array([1.0, 2.0, 3.0]))
        >>> twice, total
        (array([2., 4., 6.]), array(6.))
        """
        return self._writer(out, *args)

    def _write(self, *given: Any) -> Any:
        """The road of `into` that no native function recognised."""
        from symgrad.codegen.bind import into_entry

        if not given:
            raise TypeError("into: got no arguments; pass `out`, then the function's arguments")
        out, *rest = given
        args = tuple(rest)
        trace, leaves = self._trace(args, {})
        if trace.writer is None and trace.native and not any(isinstance(x, Tensor) for x in leaves):
            trace.writer = into_entry(trace.recipe, args, trace.form, trace.fixed, self._write)
        targets = _fitting(out, trace)
        if trace.writer is not None:
            # In place of the method, so that `f.into` is the native function itself: 60 ns less.
            self._writer = self.into = trace.writer  # type: ignore[method-assign]
        values = [
            v.look() if isinstance(v, Tensor) else np.asarray(v)
            for v in self._compute(trace, leaves)
        ]
        for number, value in enumerate(values):
            # A result may be an argument itself, which an earlier result is written over.
            if any(np.may_share_memory(value, target) for target in targets[:number]):
                values[number] = value.copy()
        for target, value in zip(targets, values, strict=True):
            target[...] = value
        return out

    # -- addresses for solvers --------------------------------------------------------

    def pointer(self, *args: Any) -> Any:
        """The function as C sees it, for arguments like these.

        Parameters
        ----------
        *args
            Arrays and floats; only their structure counts.

        Returns
        -------
        ctypes function
            ``int64_t f(void **arguments, void **results)``: addresses of contiguous arrays (of 8-byte
            floats for numbers), one per array or number of the arguments and of the results, in
            order. It returns 0, or another number if a routine refused the values. It may be called
            from several threads at once, and lives as long as this object.

        Raises
        ------
        TypeError
            If part of the program is known to Python alone.

        Examples
        --------
        >>> import ctypes, numpy as np, symgrad as sg
        >>> x, y = np.array([1.0, 2.0]), np.empty(2)
        >>> square = sg.compile(lambda x: x * x).pointer(x)
        >>> table = ctypes.c_void_p * 1
        >>> square(table(x.ctypes.data), table(y.ctypes.data))
        0
        >>> y
        array([1., 4.])
        """
        from symgrad.codegen.pointer import pointer_of

        return pointer_of(self._wiring("pointer", args)[0])

    def low_level(self, *args: float) -> Any:
        """A function of numbers for SciPy's integrators and filters, which call it without Python.

        Parameters
        ----------
        *args : float
            As many numbers as the function takes.

        Returns
        -------
        scipy.LowLevelCallable
            With the signature ``double (int, double *, void *)``. The value is NaN where a routine
            refused the numbers.

        Raises
        ------
        TypeError
            If the function takes or gives anything but numbers, or part of it is known to Python alone.

        Examples
        --------
        >>> import symgrad as sg
        >>> from scipy.integrate import quad
        >>> bell = sg.compile(lambda x: sg.exp(-x * x)).low_level(0.0)
        >>> round(quad(bell, -10.0, 10.0)[0], 9)
        1.772453851
        """
        from scipy import LowLevelCallable

        from symgrad.codegen.pointer import scalar_of

        wiring, trace = self._wiring("low_level", args)
        single = len(trace.outputs) == 1
        for node in (*trace.inputs, *trace.outputs):
            if node.shape or node.dtype is not dtypes.float64 or not single:
                raise TypeError(
                    f"low_level: {self.__name__} must take floats and give one (got "
                    f"{[str(list(n.shape)) for n in trace.inputs]} to "
                    f"{[str(list(n.shape)) for n in trace.outputs]}); use pointer for arrays"
                )
        return LowLevelCallable(scalar_of(wiring))

    def _wiring(self, name: str, args: tuple[Any, ...]) -> tuple[Any, Trace]:
        """How the program for some arguments is connected, if it is a single native call."""
        from symgrad.codegen.pointer import Wiring

        trace, _ = self._trace(args, {})
        if not trace.native:
            raise TypeError(
                f"{name}: {self.__name__} reads or writes tensors from outside, draws random numbers, has "
                "complex values or needs a routine of Python's; pass all it uses as arguments"
            )
        recipe = trace.recipe
        results = [(is_input, number) for is_input, number, _ in recipe.results]
        return Wiring(recipe.program, recipe.sources, results), trace

    # -- looking ----------------------------------------------------------------------

    def _latest(self) -> Trace:
        if self._last is None:
            raise RuntimeError(
                f"{self.__name__}: nothing was compiled yet; call it once, or use .trace(*args)"
            )
        return self._last

    def trace(self, *args: Any, **kwargs: Any) -> Compiled:
        """Compile for the structure of these arguments without running."""
        self._trace(args, kwargs)
        return self

    def formula(self) -> str:
        """The outputs of the latest structure as text."""
        from symgrad.formula.text import text

        trace = self._latest()
        names = self._names(trace)
        return "\n".join(text(node, names) for node in trace.outputs)

    def _names(self, trace: Trace) -> dict[Expr, str]:
        code = getattr(self._function, "__code__", None)
        words = list(code.co_varnames[: code.co_argcount]) if code is not None else []
        if len(words) != len(trace.inputs):
            words = [f"x{k}" for k in range(len(trace.inputs))]
        return dict(zip(trace.inputs, words, strict=True))

    def schedule(self) -> str:
        """The steps of the latest structure's program, a line each."""
        return self._latest().recipe.program.schedule.text()

    def llvm(self) -> str:
        """The LLVM IR of the latest structure's kernels."""
        return self._latest().recipe.program.llvm()

    def asm(self) -> str:
        """The machine code of the latest structure's kernels."""
        return self._latest().recipe.program.asm()

    def memory(self) -> Memory:
        """Bytes that a call with the latest structure needs.

        Returns
        -------
        Memory
            A named tuple: ``inputs``, ``outputs``, ``temporaries``, ``constants`` and ``peak``.
        """
        from symgrad.codegen.measure import memory_of

        trace = self._latest()
        recipe = trace.recipe
        constant = [isinstance(s, np.ndarray) for s in recipe.sources]
        joined = sum(n.size * n.dtype.itemsize for n in trace.roots() if n.dtype.is_complex)
        return memory_of(recipe.program, constant, joined)

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """Where the time of a call goes: every step of the program measured alone.

        Parameters
        ----------
        *args, **kwargs
            Arguments to measure with. Without any, those of the latest structure, with values
            drawn from [0.5, 1) in place of floating point numbers and zeros in place of integers.

        Returns
        -------
        Report
            Prints as a table: time, bytes and operations of each step, next to the bandwidth of a
            copy and the speed of a product on this machine. `Report.as_dict` gives plain data.
        """
        from symgrad.codegen.measure import drawn, measured

        if args or kwargs:
            trace, leaves = self._trace(args, kwargs)
        else:
            trace = self._latest()
            leaves = [drawn(node) for node in trace.inputs]
        keys = [drawn(node) for _, node in trace.draws]
        arrays = tuple([as_parts(a) for a in trace.arrays(leaves, keys)])
        try:
            return measured(trace.recipe.program, arrays)
        except (RuntimeError, ValueError, IndexError) as error:
            if args or kwargs:
                raise
            raise RuntimeError(
                f"report: drawn values do not suit {self.__name__} (got {type(error).__name__}: "
                f"{error}); pass arguments to measure with"
            ) from error


def compile(function: Callable[..., Any] | None = None, *, memory: str | None = None) -> Any:
    """Compile a function of tensors, arrays and numbers.

    Parameters
    ----------
    function : callable
        Takes and returns nested lists, tuples and dicts of tensors, NumPy arrays, floats and
        complex numbers.
        Other arguments (int, bool, str) are static: each value is compiled anew. It is run once
        per structure with traced tensors, on which Python cannot branch: use `symgrad.where`.
        Without it, a decorator is returned.
    memory : {None, "small"}, optional
        "small": stored values, products among them, are dropped and computed again where that
        lowers the peak of memory for temporaries, at the price of up to half the estimated time more.
        The results have the same bits. `Compiled.memory` tells what a call needs. What a call records
        for derivatives that flow through it is kept as without, and so is what the derivative of a
        loop needs of its steps, be it a `symgrad.scan` or found in a long program. By hand, parts of
        a function are marked with `symgrad.autograd.checkpoint.checkpoint`.

    Returns
    -------
    Compiled
        Arrays and floats in give arrays and floats out; tensors in give tensors out, and
        derivatives flow through. Tensors from outside are read at each call, and what the function
        does to them is done at each call: changes in place, through views too, and gradients that
        ``backward()`` adds to leaves.

    Raises
    ------
    ValueError
        If `memory` is neither None nor "small".
    TracedValueError
        At the call, if the function asks for the value of a traced tensor.
    RuntimeError
        At the call, if the function changes the ``requires_grad`` or the shape of a tensor from outside,
        or calls ``backward()`` on what depends on an argument that requires grad.

    Examples
    --------
    >>> import symgrad as sg
    >>> f = sg.compile(lambda x, y: x * y + sg.sin(x))
    >>> round(f(1.0, 2.0), 6)
    2.841471
    """
    if memory is not None and not (isinstance(memory, str) and memory == "small"):
        raise ValueError(
            f'compile: memory must be None or "small" (got {memory!r}); leave it out for speed, or '
            'pass memory="small" to compute stored values again where that saves memory'
        )
    if function is None:
        return partial(compile, memory=memory)
    if not callable(function):
        raise TypeError(
            f"compile: the first argument is no function (got {type(function).__name__}); pass a callable"
        )
    from symgrad.codegen.entry_class import native_class

    return native_class(Compiled)(function, memory == "small")
