"""Running a user's function for a transform.

Structures:

* `Level`: one run of a function on fresh nodes that stand for its arguments, and the way back:
  results are recorded again on the arguments themselves (`Level.closed`), so nothing of a level
  is left in what it returns, and levels nest to any depth.
* `Watch`: notices what the function writes to tensors from outside.
* `Argument`: the handle that the function gets.

Start reading at `Level`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from symgrad.calculus.batching import replaced
from symgrad.calculus.rolling import rolled
from symgrad.capture import Capture, tensor_of
from symgrad.expr import Expr
from symgrad.nesting import flatten, unflatten
from symgrad.op import STATE, grad_mode
from symgrad.ops.alias import clone
from symgrad.ops.random import key_node
from symgrad.storage import Slot
from symgrad.tensor import Tensor

MUTATED = (
    "During a grad (vjp, jvp, grad, etc) transform, the function provided attempted to call in-place "
    "operation that would mutate a captured Tensor (got one of shape {}). This is not supported; "
    "please rewrite the function being transformed to explicitly accept the mutated Tensor(s) as inputs."
)


class Argument(Tensor):
    """The handle of a function's argument inside a transform."""

    __slots__ = ()

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Refused: what is differentiated is the transform's choice."""
        raise RuntimeError(
            "You are attempting to call Tensor.requires_grad_() inside of a function being transformed by "
            "a functorch transform. This is unsupported, please attempt to use the transforms (grad, vjp, "
            "jacrev, jacfwd, hessian) or call requires_grad_() outside of the function."
        )


class Watch(Capture):
    """Finds the outside tensors that a function writes; their stand-ins are on their own nodes."""

    @property
    def changed(self) -> list[tuple[Tensor, Expr]]:
        """Outside tensors that the function changed, with their new nodes."""
        return [(tensor_of(holder), node) for holder, node in self.written]

    def enter(self, node: Expr) -> Expr:
        """The node itself."""
        return node

    def gradient(self, slot: Slot) -> Tensor | None:
        """The leaf's gradient: a transform has no state of its own."""
        return slot.own_grad if self._outer is None else self._outer.gradient(slot)  # type: ignore[no-any-return]

    def set_gradient(self, slot: Slot, value: Tensor | None) -> None:
        """Give the leaf another gradient."""
        if self._outer is None:
            slot.own_grad = value
        else:
            self._outer.set_gradient(slot, value)

    def check_backward(self, graph: list[Expr]) -> None:
        """Refused: gradients would be those of the transform's own nodes."""
        raise RuntimeError(
            "backward() called inside a functorch transform. This is not supported, please use functorch.grad "
            "or functorch.vjp instead or call backward() outside of functorch transforms."
        )

    def key(self, generator: Any) -> Expr:
        """The key of a random draw."""
        outer = self._outer
        return key_node(generator.next_key()) if outer is None else outer.key(generator)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, for messages."""
    return getattr(function, "__name__", repr(function))


class Level:
    """One run of a function for a derivative.

    Attributes
    ----------
    leaves : list of Expr
        The nodes that stand for the differentiated arguments; derivatives are taken at them.
    sources : list of Expr
        What they stand for.
    form
        The nesting of the differentiated arguments, a tuple.
    result
        What the function returned, still on `leaves`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        argnums: Sequence[int],
        kwargs: dict[str, Any],
    ) -> None:
        values, self.form = flatten(tuple(args[k] for k in argnums))
        if not values:
            raise RuntimeError(
                f"{name_of(function)}: the arguments to differentiate by hold no Tensor; pass one"
            )
        for v in values:
            if not isinstance(v, Tensor):
                raise ValueError(f"Thing passed to transform API must be Tensor, got {type(v)}")
            if v.dtype.category < 2:
                raise RuntimeError(
                    "only Tensors of floating point and complex dtype can require gradients "
                    f"(got {v.dtype!r}); convert with .to(symgrad.float64)"
                )
        self.sources = [v.expr() for v in values]
        self.leaves = [Expr(clone, (s,), (), s.shape, s.dtype, True, s.value) for s in self.sources]
        handles = [Argument(leaf) for leaf in self.leaves]
        inside = unflatten(self.form, list(handles))
        given = list(args)
        for place, k in enumerate(argnums):
            given[k] = inside[place]
        watch = Watch()
        watch.adopt(handles)
        with grad_mode(True), watch:
            self.result = self._rolled(function(*given, **kwargs))
        if watch.changed:
            raise RuntimeError(MUTATED.format(tuple(watch.changed[0][0].shape)))
        for own, handle, leaf in zip(values, handles, self.leaves, strict=True):
            if handle.own_expr() is not leaf:
                # The function changed its argument in place, which is the user's tensor.
                own.write(self.closed([handle.own_expr()])[0].expr())

    def _rolled(self, result: Any) -> Any:
        """The function's result with the loops behind it rolled."""
        found, form = flatten(result)
        places = [k for k, x in enumerate(found) if isinstance(x, Tensor)]
        old = [found[k].expr() for k in places]
        new = rolled(old, {id(leaf) for leaf in self.leaves})
        if all(a is b for a, b in zip(old, new, strict=True)):
            return result
        for k, node in zip(places, new, strict=True):
            found[k] = Tensor(node)
        return unflatten(form, found)

    def closed(self, nodes: Sequence[Expr]) -> list[Tensor]:
        """Tensors of nodes recorded on the arguments themselves."""
        return [Tensor(n) for n in replaced(nodes, self.leaves, self.sources)]

    def closed_tree(self, value: Any) -> Any:
        """A nesting whose tensors are recorded on the arguments themselves."""
        leaves, form = flatten(value)
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = self.closed([leaves[k].expr() for k in places])
        for k, t in zip(places, tensors, strict=True):
            leaves[k] = t
        return unflatten(form, leaves)

    def split(self, has_aux: bool, name: str) -> tuple[Any, Any]:
        """The function's output and, with `has_aux`, what it returned beside it."""
        if not has_aux:
            return self.result, None
        if not isinstance(self.result, tuple) or len(self.result) != 2:
            raise RuntimeError(
                f"{name}: output of function f should be a tuple: (output, aux) if has_aux is True"
            )
        return self.result


def argument_places(argnums: Any, count: int) -> list[int]:
    """`argnums` as positions from the front.

    Raises
    ------
    RuntimeError
        In torch's words, for positions out of range, repeated, or of another type.
    """
    if isinstance(argnums, bool) or not isinstance(argnums, int | tuple):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    listed = argnums if isinstance(argnums, tuple) else (argnums,)
    if not listed:
        raise RuntimeError("argnums must be non-empty")
    for k in listed:
        if not isinstance(k, int):
            raise RuntimeError(f"argnum must be int, got: {type(k)}")
        if not -count <= k < count:
            raise RuntimeError(f"Got argnum={k}, but only {count} positional inputs")
    places = [k % count for k in listed]
    if len(set(places)) != len(places):
        raise RuntimeError(f"argnums elements must be unique, got {argnums}")
    return places


@contextmanager
def tracing() -> Iterator[None]:
    """Within the block values cannot be looked at: an input stands for many."""
    before = STATE.tracing
    STATE.tracing = True
    try:
        yield
    finally:
        STATE.tracing = before
