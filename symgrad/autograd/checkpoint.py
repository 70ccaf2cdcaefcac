"""Checkpoints: a part of a computation whose inner values are computed again in the backward pass.

`checkpoint` computes the function at once and keeps its results only. In the backward pass the
function is called again, recorded, and differentiated with respect to its arguments and to
whatever else it reads. In a function that is compiled the call is traced once, and the program
computes its inner values again. Start reading at `checkpoint`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from symgrad import dtypes, random, runtime
from symgrad.autograd.applied import Call, apply
from symgrad.autograd.hooks import users_code
from symgrad.autograd.memory import swap_tensors
from symgrad.autograd.walk import RUNNING
from symgrad.calculus import pullback
from symgrad.expr import Expr, ancestors
from symgrad.op import STATE, grad_mode, input_node
from symgrad.tensor import Tensor

__all__ = ["checkpoint", "checkpoint_sequential"]

ONLY_BACKWARD = (
    "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` "
    "parameter to .backward(). To resolve this error, you can either set use_reentrant=False, or call "
    ".backward() without passing the `inputs` argument."
)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _flat(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in _flat(v)]
    return []


def _filled(value: Any, tensors: Any) -> Any:
    """The result with its tensors replaced, in order."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {k: _filled(v, tensors) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_filled(v, tensors) for v in value)
    return value


def _boundary(results: Sequence[Expr], since: int) -> list[Expr]:
    """The nodes from before the call that the results are differentiable functions of."""
    reached = ancestors(results, lambda n: n.requires_grad and n.serial > since)
    return [n for n in reached if n.serial <= since and n.requires_grad]


class _Recomputed(Call):
    """A checkpointed call."""

    def __init__(
        self, run: Callable[[], list[Expr]], only_backward: bool, operands: int, results: Any
    ) -> None:
        super().__init__("CheckpointFunctionBackward", operands, results)
        self.run = run
        self.only_backward = only_backward

    def pull(self, node: Expr, cotangents: list[Expr | None]) -> Sequence[Expr | None]:
        """Call the function again and pull back through what it recorded."""
        if self.only_backward and RUNNING.passes and RUNNING.passes[-1].partial:
            raise RuntimeError(ONLY_BACKWARD)
        with users_code(), grad_mode(True):
            made = self.run()
        pairs = [(y, g) for y, g in zip(made, cotangents, strict=True) if g is not None]
        return pullback([y for y, _ in pairs], [g for _, g in pairs], node.args[: self.operands])


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """Call a function and keep nothing of it but its results.

    Inside `symgrad.compile` it is called once: what the program stores between its arguments and its
    results is dropped and computed again where the derivative needs it, with the same bits. Nothing
    is dropped where the function has complex values, nor within a step of `symgrad.scan`.

    Parameters
    ----------
    function : callable
        Must compute the same when called again.
    *args, **kwargs
        Its arguments.
    use_reentrant : bool, optional
        True: torch's old form, which `autograd.grad` refuses; `preserve_rng_state` holds for both.
    context_fn : callable, optional
        Returns two context managers: around the call, and around calling again. Refused where the
        function is not called again: inside `symgrad.compile`, `symgrad.vmap` and steps of loops.
    determinism_check, debug
        Accepted for torch's programs: nothing is compared or logged.
    preserve_rng_state : bool
        Whether random numbers are the same when the function is called again.

    Raises
    ------
    NotImplementedError
        If `context_fn` is given where the function is traced.

    Examples
    --------
    >>> import symgrad as sg
    >>> x = sg.tensor(2., requires_grad=True)
    >>> sg.autograd.checkpoint.checkpoint(lambda t: (t * t).exp(), x, use_reentrant=False).backward()
    """
    if not STATE.grad:
        return function(*args, **kwargs)
    if STATE.capture is not None or STATE.tracing:
        if context_fn is not None:
            raise NotImplementedError(
                "checkpoint: a function that is compiled or transformed is called once, so there is no "
                f"second call for the second context (got context_fn={context_fn!r}); leave it out there"
            )
        if STATE.capture is None:
            return function(*args, **kwargs)
        return _traced(function, args, kwargs)
    state = random.get_rng_state() if preserve_rng_state else None
    since = input_node((), dtypes.int64).serial
    first, later = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
    with first:
        result = function(*args, **kwargs)
    tensors = _flat(result)
    nodes = [t.expr() for t in tensors]
    recorded = [n for n in nodes if n.requires_grad and n.serial > since]
    sources = _boundary(recorded, since)
    if not sources:
        return result
    runtime.evaluate(recorded)
    values = [input_node(n.shape, n.dtype, n.value) for n in recorded]
    places = [k for k, n in enumerate(nodes) if n.requires_grad and n.serial > since]

    def again() -> list[Expr]:
        before = random.get_rng_state() if state is not None else None
        if state is not None:
            random.set_rng_state(state)
        try:
            with later:
                made = _flat(function(*args, **kwargs))
        finally:
            if before is not None:
                random.set_rng_state(before)
        return [made[k].expr() for k in places]

    call = _Recomputed(
        again, bool(use_reentrant), len(sources), [(v.shape, v.dtype) for v in values]
    )
    made = dict(zip(places, apply(call, sources, (), values), strict=True))
    return _filled(
        result, iter([Tensor(made[k]) if k in made else t for k, t in enumerate(tensors)])
    )


def _traced(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that is traced, and note what it leaves as a checkpoint of the program."""
    since = input_node((), dtypes.int64).serial
    result = function(*args, **kwargs)
    results = tuple([t.expr() for t in _flat(result)])
    until = input_node((), dtypes.int64).serial
    STATE.capture.regions.append(runtime.Region(since, until, results))
    return result


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, **kwargs: Any
) -> Any:
    """Apply functions one after the other, as `segments` checkpoints."""
    listed = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = max(len(listed) // segments, 1)

    def stretch(start: int, end: int) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            for function in listed[start:end]:
                value = function(value)
            return value

        return run

    end = 0
    for start in range(0, size * (segments - 1), size):
        end = start + size
        input = checkpoint(stretch(start, end), input, use_reentrant=use_reentrant, **kwargs)
    return stretch(end, len(listed))(input)


def publish() -> None:
    """Make the modules `symgrad.utils` and `symgrad.utils.checkpoint` that torch's users import."""
    utils = types.ModuleType("symgrad.utils", "torch.utils: checkpoints and swapping of tensors.")
    utils.checkpoint = sys.modules[__name__]  # type: ignore[attr-defined]
    utils.swap_tensors = swap_tensors  # type: ignore[attr-defined]
    utils.__path__ = []
    sys.modules["symgrad.utils"] = utils
    sys.modules["symgrad.utils.checkpoint"] = sys.modules[__name__]
    sys.modules["symgrad"].utils = utils  # type: ignore[attr-defined]
