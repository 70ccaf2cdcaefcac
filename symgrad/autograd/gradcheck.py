"""Checking derivatives against differences: `gradcheck` and `gradgradcheck`.

The Jacobian of every output with respect to every input that requires grad is taken twice, by
central differences of the function's values and by the backward pass, and the two are compared. A
fast mode compares one random projection instead. Start reading at `gradcheck`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symgrad.autograd import engine
from symgrad.autograd.graph import target_of
from symgrad.op import grad_mode
from symgrad.tensor import Tensor, from_array

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError):
    """A derivative that differs from the differences, or a backward pass that is not fit for use."""


@dataclass(frozen=True)
class _Options:
    """What to check and how closely."""

    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    undefined: bool
    dtypes: bool
    batched: bool
    batched_forward: bool
    forward: bool
    backward: bool
    fast: bool


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for t in value if isinstance(t, Tensor)]
    return []


def _is_inexact(t: Tensor) -> bool:
    return t.dtype.category >= 2


def _checked_inputs(inputs: tuple[Any, ...]) -> list[int]:
    """Positions of the inputs that require grad."""
    places = []
    for number, t in enumerate(inputs):
        if not isinstance(t, Tensor) or not t.requires_grad:
            continue
        if t.dtype.name not in ("float64", "complex128"):
            warnings.warn(
                f"Input #{number} requires gradient and is not a double precision floating point or "
                "complex. This check will likely fail if all the inputs are not of double precision "
                "floating point or complex. ",
                UserWarning,
                stacklevel=4,
            )
        if any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True)):  # type: ignore[attr-defined]
            raise RuntimeError(
                f"The {number}th input has a dimension with stride 0. gradcheck only supports inputs that "
                "are non-overlapping to be able to compute the numerical gradients correctly. You should "
                "call .contiguous on the input before passing it to gradcheck (dimensions with stride 0)."
            )
        places.append(number)
    if not places:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have "
            "requires_grad=True."
        )
    return places


class _Check:
    """One check: a function at a point.

    Attributes
    ----------
    places : list of int
        Positions of the differentiated inputs.
    arrays : list of ndarray
        Their values.
    """

    def __init__(
        self, func: Callable[..., Any], inputs: tuple[Any, ...], options: _Options
    ) -> None:
        self.func = func
        self.inputs = inputs
        self.options = options
        self.places = _checked_inputs(inputs)
        self.arrays = [np.array(inputs[k].look()) for k in self.places]

    def outputs(self, arrays: Sequence[np.ndarray] | None = None) -> list[Tensor]:
        """The function's floating outputs, at the point or at other values of its inputs."""
        given = list(self.inputs)
        if arrays is not None:
            for k, a in zip(self.places, arrays, strict=True):
                given[k] = from_array(np.array(a), requires_grad=True)
        return [t for t in _tensors(self.func(*given)) if _is_inexact(t)]

    # -- differences ------------------------------------------------------------------

    def _difference(self, place: int, direction: np.ndarray) -> list[np.ndarray]:
        """Central differences of all outputs along a direction of one input."""
        sides = []
        for sign in (1.0, -1.0):
            moved = list(self.arrays)
            moved[place] = moved[place] + sign * self.options.eps * direction
            with grad_mode(True):
                sides.append([np.array(t.look()) for t in self.outputs(moved)])
        return [
            (above - below) / (2 * self.options.eps) for above, below in zip(*sides, strict=True)
        ]

    def numerical(self, place: int) -> list[np.ndarray]:
        """Per output its Jacobian (input size, output size) by central differences."""
        x = self.arrays[place]
        rows: list[list[np.ndarray]] = []
        for k in range(x.size):
            unit = np.zeros(x.size, x.dtype)
            unit[k] = 1.0
            row = self._difference(place, unit.reshape(x.shape))
            if np.iscomplexobj(x):
                turned = self._difference(place, (1j * unit).reshape(x.shape))
                row = [np.stack([r.ravel(), i.ravel()]) for r, i in zip(row, turned, strict=True)]
            rows.append(row)
        count = len(rows[0]) if rows else len(self.outputs())
        if np.iscomplexobj(x):
            return [np.stack([r[o] for r in rows], 0) for o in range(count)]
        if not rows:
            return [np.zeros((0, t.numel())) for t in self.outputs()]
        return [np.stack([r[o].ravel() for r in rows]) for o in range(count)]

    # -- backward ---------------------------------------------------------------------

    def pulled(self, output: Tensor, cotangent: np.ndarray) -> list[Tensor | None]:
        """Gradients of one output for a cotangent."""
        g = from_array(np.array(cotangent, output.dtype.numpy))
        targets = [target_of(self.inputs[k]) for k in self.places]
        found = engine.run([output.expr()], [g], targets, True, False, None)
        return [None if f is None else Tensor(f) for f in found]

    def analytical(self, output: Tensor, scale: complex = 1.0) -> list[np.ndarray]:
        """Per input the Jacobian (input size, output size) by the backward pass."""
        columns: list[list[np.ndarray]] = [[] for _ in self.places]
        for k in range(output.numel()):
            unit = np.zeros(output.numel(), output.dtype.numpy)
            unit[k] = scale
            grads = self.pulled(output, unit.reshape(tuple(output.shape)))
            for column, g, x in zip(columns, grads, self.places, strict=True):
                column.append(self._gradient(g, self.inputs[x]))
        return [
            np.stack(c, -1) if c else np.zeros((a.size, 0))
            for c, a in zip(columns, self.arrays, strict=True)
        ]

    def _gradient(self, g: Tensor | None, x: Tensor) -> np.ndarray:
        if g is None:
            return np.zeros(x.numel(), x.dtype.numpy)
        if g.shape != x.shape:
            raise GradcheckError("grad is incorrect size")
        if g.dtype is not x.dtype:
            raise GradcheckError("grad is incorrect type")
        return np.array(g.look()).ravel()


def _close(a: np.ndarray, n: np.ndarray, options: _Options) -> bool:
    return bool(np.allclose(a, n, rtol=options.rtol, atol=options.atol))


def _mismatch(
    output: int, place: int, a: np.ndarray, n: np.ndarray, mode: str = ""
) -> GradcheckError:
    return GradcheckError(
        f"{mode}Jacobian mismatch for output {output} with respect to input {place},\n"
        f"numerical:{n}\nanalytical:{a}\n"
    )


def _compare_slow(check: _Check, outputs: list[Tensor]) -> None:
    options = check.options
    numerical = [check.numerical(k) for k in range(len(check.places))]
    for o, y in enumerate(outputs):
        analytical = check.analytical(y)
        again = check.analytical(y)
        turned = check.analytical(y, 1j) if y.dtype.is_complex else None
        for k, place in enumerate(check.places):
            a, n = analytical[k], numerical[k][o]
            if a.size and np.max(np.abs(a - again[k])) > options.nondet_tol:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output "
                    "multiple times gives different values, although analytical gradient matches "
                    f"numerical gradient. The tolerance for nondeterminism was {options.nondet_tol}."
                )
            if np.iscomplexobj(check.arrays[k]) or turned is not None:
                _compare_complex(
                    o, place, a, None if turned is None else turned[k], n, check.arrays[k], options
                )
            elif not _close(a, n, options):
                raise _mismatch(o, place, a, n)


def _compare_complex(
    output: int,
    place: int,
    a: np.ndarray,
    turned: np.ndarray | None,
    n: np.ndarray,
    x: np.ndarray,
    options: _Options,
) -> None:
    """Compare by real parts: a gradient is Re and Im of the conjugate pairing with each cotangent."""
    if not np.iscomplexobj(x):
        n = n[:, None, :]
    along_real, along_imaginary = n[:, 0], n[:, 1] if n.shape[1] > 1 else None
    cotangents = [(1.0, a)] if turned is None else [(1.0, a), (1j, turned)]
    for c, g in cotangents:
        real = np.real(np.conj(c) * along_real)
        wanted = (
            real if along_imaginary is None else real + 1j * np.real(np.conj(c) * along_imaginary)
        )
        if not _close(g, wanted, options):
            raise _mismatch(output, place, g, wanted)


def _compare_fast(check: _Check, outputs: list[Tensor]) -> None:
    """One random direction per input against one random cotangent per output."""
    options = check.options
    rng = np.random.default_rng(20)
    directions = [_random(rng, a) for a in check.arrays]
    cotangents = [_random(rng, y.look()) for y in outputs]
    for k, place in enumerate(check.places):
        moved = check._difference(k, directions[k])
        for o, y in enumerate(outputs):
            grads = check.pulled(y, cotangents[o])
            g = check._gradient(grads[k], check.inputs[place])
            again = check._gradient(check.pulled(y, cotangents[o])[k], check.inputs[place])
            if g.size and np.max(np.abs(g - again)) > options.nondet_tol:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output "
                    f"multiple times gives different values (fast mode, tolerance {options.nondet_tol})."
                )
            a = np.real(np.sum(np.conj(g) * directions[k].ravel()))
            n = np.real(np.sum(np.conj(cotangents[o]) * moved[o]))
            scale = np.sqrt(max(check.arrays[k].size, 1) * max(cotangents[o].size, 1))
            if not np.allclose(a, n, rtol=options.rtol, atol=options.atol * scale):
                slow = ""
                try:
                    _compare_slow(check, outputs)
                except GradcheckError as error:
                    slow = str(error)
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {place},\n"
                    f"numerical:{n}\nanalytical:{a}\n\n"
                    "The above quantities relating the numerical and analytical jacobians are computed in "
                    "fast mode: one random projection of each. Below, we recompute numerical and analytical jacobians in slow mode:"
                    f"\n\n{slow}"
                )


def _random(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    values = rng.uniform(-1.0, 1.0, like.shape)
    if np.iscomplexobj(like):
        values = values + 1j * rng.uniform(-1.0, 1.0, like.shape)
    return np.asarray(values, like.dtype)


def _check_constant(check: _Check, outputs: list[Tensor]) -> None:
    """Outputs without history must not depend on the inputs."""
    for k in range(len(check.places)):
        for n, y in zip(check.numerical(k), outputs, strict=True):
            if not y.requires_grad and np.any(np.abs(n) > check.options.atol):
                raise GradcheckError("Numerical gradient for function expected to be zero")


def _check_undefined(check: _Check) -> None:
    """Backward copes with outputs that have no cotangent."""
    outputs = [y for y in check.outputs() if y.requires_grad]
    for o in range(len(outputs)):
        fresh = [y for y in check.outputs() if y.requires_grad]
        zeros = np.zeros(tuple(fresh[o].shape), fresh[o].dtype.numpy)
        for g in check.pulled(fresh[o], zeros):
            if g is not None and np.any(np.nan_to_num(g.look()) != 0):
                raise GradcheckError(
                    "backward not handling undefined output grad case, expected a zero gradient for a zero "
                    f"cotangent of output {o}"
                )


def _check_batched(check: _Check, outputs: list[Tensor]) -> None:
    """Batched cotangents give the stacked gradients."""
    from symgrad.autograd import grad

    rng = np.random.default_rng(21)
    inputs = [check.inputs[k] for k in check.places]
    for o, y in enumerate(outputs):
        rows = np.stack([_random(rng, y.look()) for _ in range(2)])
        made = grad([y], inputs, [from_array(rows)], True, is_grads_batched=True, allow_unused=True)
        single = [check.pulled(y, r) for r in rows]
        for k, m in enumerate(made):
            for row, grads in enumerate(single):
                g = grads[k]
                if (m is None) != (g is None) or (
                    m is not None and g is not None and not np.allclose(m.look()[row], g.look())
                ):
                    raise GradcheckError(
                        f"While computing batched gradients, got a mismatch for output {o} with respect to "
                        f"input {check.places[k]}"
                    )


def _check_forward(check: _Check, outputs: list[Tensor]) -> None:
    """Forward mode against the differences."""
    from symgrad.autograd import forward_ad

    for k, place in enumerate(check.places):
        numerical = check.numerical(k)
        x = check.inputs[place]
        columns: list[list[np.ndarray]] = [[] for _ in outputs]
        for e in range(x.numel()):
            unit = np.zeros(x.numel(), x.dtype.numpy)
            unit[e] = 1.0
            with forward_ad.dual_level():
                given = list(check.inputs)
                tangent = from_array(unit.reshape(tuple(x.shape)))
                given[place] = forward_ad.make_dual(x.detach(), tangent)
                made = [t for t in _tensors(check.func(*given)) if _is_inexact(t)]
                for column, y in zip(columns, made, strict=True):
                    moved = forward_ad.unpack_dual(y).tangent
                    column.append(
                        np.zeros(y.numel(), y.dtype.numpy)
                        if moved is None
                        else np.array(moved.look()).ravel()
                    )
        for o, column in enumerate(columns):
            a = np.stack(column) if column else np.zeros((0, outputs[o].numel()))
            n = numerical[o]
            if np.iscomplexobj(check.arrays[k]):
                n = n[:, 0]
            if not _close(a, n, check.options):
                raise _mismatch(o, place, a, n, "Forward mode ")


def _run(check: _Check) -> bool:
    options = check.options
    outputs = check.outputs()
    recorded = [y for y in outputs if y.requires_grad]
    if len(recorded) < len(outputs) or not outputs:
        _check_constant(check, outputs)
    if options.forward and recorded:
        _check_forward(check, outputs)
    if not options.backward or not recorded:
        return True
    everything = check.func

    def only_recorded(*args: Any) -> Any:
        made = [t for t in _tensors(everything(*args)) if _is_inexact(t)]
        return tuple([t for t in made if t.requires_grad])

    check.func = only_recorded
    compare = _compare_fast if options.fast else _compare_slow
    compare(check, recorded)
    if options.batched:
        _check_batched(check, recorded)
    if options.undefined:
        _check_undefined(check)
    return True


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check gradients against central differences.

    Parameters
    ----------
    func : callable
        Takes the inputs and returns a tensor or a tuple of tensors.
    inputs : Tensor or tuple
        Those that require grad are checked; they should be float64.
    eps : float
        Step of the differences.
    atol, rtol : float
        How far the gradient may be from the differences.
    raise_exception : bool
        Whether to raise rather than return False.
    nondet_tol : float
        How far two backward passes may be apart.
    check_undefined_grad, check_batched_grad, check_forward_ad, check_backward_ad : bool
        What to check: missing cotangents, batched cotangents, forward mode, the backward pass.
    check_grad_dtypes : bool
        Gradients always have to be of their input's type here.
    fast_mode : bool
        Compare one random projection.
    masked : bool, optional
        Accepted; there are no sparse tensors.

    Returns
    -------
    bool

    Raises
    ------
    GradcheckError
        If the two differ and `raise_exception` is true.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor([0.1, 0.2], dtype=sg.float64, requires_grad=True)
    >>> sg.autograd.gradcheck(sg.sin, (x,))
    True
    """
    assert check_forward_ad or check_backward_ad, (
        "Expected at least one of check_forward_ad or check_backward_ad to be True"
    )
    options = _Options(
        eps, atol, rtol, nondet_tol, check_undefined_grad and check_backward_ad, check_grad_dtypes,
        check_batched_grad, check_batched_forward_grad, check_forward_ad, check_backward_ad, fast_mode,
    )  # fmt: skip
    listed = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    try:
        with grad_mode(True):
            return _run(_Check(func, listed, options))
    except GradcheckError:
        if raise_exception:
            raise
        return False


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check second derivatives against central differences of the first.

    Parameters
    ----------
    func, inputs
        As for `gradcheck`.
    grad_outputs : Tensor or sequence, optional
        Cotangents at which the first derivative is differentiated; by default random ones.
    gen_non_contig_grad_outputs : bool
        Accepted: cotangents have no layout here.

    Returns
    -------
    bool
    """
    from symgrad.autograd import grad

    assert check_fwd_over_rev or check_rev_over_rev, (
        "Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True"
    )
    listed = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    with grad_mode(True):
        outputs = [t for t in _tensors(func(*listed)) if t.requires_grad and _is_inexact(t)]
    if grad_outputs is None:
        rng = np.random.default_rng(22)
        cotangents = [from_array(_random(rng, y.look()), requires_grad=True) for y in outputs]
    else:
        given = (grad_outputs,) if isinstance(grad_outputs, Tensor) else tuple(grad_outputs)
        cotangents = [g if g.requires_grad else g.detach().clone().requires_grad_() for g in given]
    count = len(listed)

    def first(*args: Any) -> Any:
        own, given = args[:count], args[count:]
        made = [t for t in _tensors(func(*own)) if t.requires_grad and _is_inexact(t)]
        wanted = [t for t in own if isinstance(t, Tensor) and t.requires_grad]
        found = grad(made, wanted, list(given), create_graph=True, allow_unused=True)
        return tuple([g for g in found if g is not None])

    return gradcheck(
        first, (*listed, *cotangents), eps=eps, atol=atol, rtol=rtol,
        raise_exception=raise_exception, nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad, check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad, check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev, fast_mode=fast_mode, masked=masked,
    )  # fmt: skip
