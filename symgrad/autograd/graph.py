"""The graph as torch shows it: nodes behind `grad_fn`, edges, saved tensors and hooks on them.

Structures:

* `GraphNode`: a view of a recorded node. There is one per node while somebody holds it; what lasts
  (hooks, metadata) is kept with the node (`symgrad.autograd.hooks.Hooks`).
* `GradientEdge`: where a gradient flows: a node and the number of its output.

Start reading at `node_view`, then `GraphNode`.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from symgrad.autograd.applied import APPLY, GATHER, RESULT, call_of, result_of
from symgrad.autograd.engine import AGAIN
from symgrad.autograd.hooks import (
    METHODS,
    RemovableHandle,
    added,
    history,
    hooks_of,
    is_spent,
    note_of,
    table_of,
)
from symgrad.autograd.names import node_name
from symgrad.autograd.saved import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from symgrad.autograd.walk import RUNNING, operand_places, part_number
from symgrad.calculus.known import KNOWN
from symgrad.calculus.reverse import contributions
from symgrad.dtypes import float64
from symgrad.expr import Expr
from symgrad.op import CONSTANT, INPUT
from symgrad.ops.arithmetic import add
from symgrad.storage import Part, SlotReference
from symgrad.tensor import Tensor

__all__ = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


class Node(abc.ABC):
    """What every node of the graph is an instance of, as in torch."""

    @abc.abstractmethod
    def name(self) -> str:
        """torch's name of the node, such as ``MulBackward0``."""

    @property
    @abc.abstractmethod
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Per operand the node that its gradient goes to and which output of that node it is."""


class InputMetadata(NamedTuple):
    """Shape and type of an output of a node."""

    shape: tuple[int, ...]
    dtype: Any


class SavedTensor:
    """A saved operand or result of a node, on which pack and unpack hooks can be put."""

    def __init__(self, node: Expr, place: int) -> None:
        self._node = node
        self._place = place

    def register_hooks(
        self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
    ) -> None:
        """Keep what `pack` makes of the tensor, and use what `unpack` makes of that.

        Raises
        ------
        RuntimeError
            If there are hooks already.
        """
        saved = hooks_of(self._node).saved
        if self._place in saved:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: only "
                "one pair of hooks is allowed at a time."
            )
        source = self._node if self._place < 0 else self._node.args[self._place]
        saved[self._place] = (pack(Tensor(source)), unpack)


class GraphNode(Node):
    """A recorded operation: its name, where its gradients go, its hooks."""

    __slots__ = ("node",)

    def __init__(self, node: Expr) -> None:
        self.node = node

    def name(self) -> str:
        """torch's name of the node, such as ``MulBackward0``."""
        return node_name(self.node)

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Per operand the node that its gradient goes to and which output of that node it is."""
        node = self.node
        if node.op is APPLY:
            operands: Sequence[Expr] = node.args[: call_of(node).operands]
        else:
            operands = [a for a in node.args if a.dtype.category >= 2 and a.op is not CONSTANT]
        return tuple((None, 0) if not a.requires_grad else edge_of(a) for a in operands)

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dictionary for the user, which lasts as long as the node."""
        hooks = hooks_of(self.node)
        if hooks.metadata is None:
            hooks.metadata = {}
        return hooks.metadata

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call ``fn(grad_inputs, grad_outputs)`` after the node ran; it may return other inputs."""
        return added(hooks_of(self.node).after, fn)

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call ``fn(grad_outputs)`` before the node runs; it may return other gradients."""
        return added(hooks_of(self.node).before, fn)

    def formula(self) -> str:
        """The expression that the node computed, as text."""
        return Tensor(self.node).formula()  # type: ignore[attr-defined]

    def _sequence_nr(self) -> int:
        return self.node.serial

    @property
    def _input_metadata(self) -> list[InputMetadata]:
        if self.node.op is APPLY:
            return [InputMetadata(*r) for r in call_of(self.node).results]
        return [InputMetadata(self.node.shape, self.node.dtype)]

    def __call__(self, *gradients: Tensor) -> Any:
        """The gradients of the operands for given output gradients."""
        node = self.node
        if node.op is APPLY:
            total: Expr | None = None
            for number, g in enumerate(gradients):
                part = Expr(GATHER, (g.expr(), node), (number,), node.shape, float64)
                total = part if total is None else add(total, part)
            assert total is not None
            start = total
        else:
            start = gradients[0].expr()
        parts = contributions(node, start)
        wanted = [parts[k] for k in operand_places(node)]
        return tuple(None if p is None else Tensor(p) for p in wanted)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_saved_"):
            return self._saved(name.removeprefix("_saved_"))
        if name.startswith("_raw_saved_"):
            return SavedTensor(self.node, self._place(name.removeprefix("_raw_saved_")))
        if not name.startswith("__") and self.node.op is APPLY:
            return call_of(self.node).attribute(self.node, name)  # type: ignore[attr-defined]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _place(self, name: str) -> int:
        places = {
            "self": 0,
            "input": 0,
            "other": 1,
            "mat2": 1,
            "exponent": 1,
            "result": -1,
            "output": -1,
        }
        place = places.get(name, len(self.node.args))
        if place >= len(self.node.args):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute '_saved_{name}'")
        return place

    def _saved(self, name: str) -> Any:
        place = self._place(name)
        if is_spent(self.node):
            raise RuntimeError(AGAIN)
        source = self.node if place < 0 else self.node.args[place]
        if source.op is CONSTANT:
            return source.value
        return handle_of(source)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {hex(id(self))}>"


class AccumulateGrad(GraphNode):
    """Where a leaf's gradient is added to its `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, node: Expr, variable: Tensor) -> None:
        super().__init__(node)
        self.variable = variable

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Nothing: gradients end here."""
        return ()

    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call ``fn((grad,))`` before the gradient is accumulated."""

        def hook(g: Tensor) -> Any:
            result = fn((g,))
            return result[0] if isinstance(result, tuple | list) else result

        return added(table_of(self.variable), hook)

    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call ``fn((), (grad,))`` after the gradient was accumulated."""
        return self.variable.register_post_accumulate_grad_hook(  # type: ignore[attr-defined]
            lambda p: fn((), (p.grad,))
        )


_CLASSES: dict[str, type[GraphNode]] = {}


def _class_of(name: str) -> type[GraphNode]:
    """A class of its own for each name, as in torch."""
    short = name.rpartition("::")[2]
    found = _CLASSES.get(short)
    if found is None:
        found = _CLASSES[short] = type(short, (GraphNode,), {"__slots__": ()})
    return found


def node_view(node: Expr) -> GraphNode:
    """The view of a node: the same object while somebody holds it."""
    node = history(node)
    if node.op.annotates:
        node = node.args[0]
    if node.op is RESULT:
        node = node.args[1]
    note = note_of(node)
    if isinstance(note, Part):
        for reference in note.group.members:
            first = reference()
            if first is not None:
                node = first
                break
    if node.op is INPUT:
        return _leaf_view(node)
    hooks = hooks_of(node)
    found = None if hooks.view is None else hooks.view()
    if found is None:
        found = _class_of(node_name(node))(node)
        hooks.view = weakref.ref(found)
    return found


def _leaf_view(node: Expr) -> GraphNode:
    slot = node.meta() if isinstance(node.meta, weakref.ref) else None
    owner = None if slot is None else slot.owner()
    if slot is None or owner is None:
        return AccumulateGrad(node, Tensor(node))
    found = None if slot.view is None else slot.view()
    if found is None:
        found = AccumulateGrad(node, owner)
        slot.view = weakref.ref(found)
    return found


def handle_of(node: Expr) -> Tensor:
    """A tensor of a node: a leaf's own if it lives."""
    if node.op is INPUT and isinstance(node.meta, weakref.ref):
        slot = node.meta()
        owner = None if slot is None else slot.owner()
        if owner is not None and owner.expr() is node:
            return owner
        made = Tensor(node)
        if isinstance(node.meta, SlotReference):
            made.__dict__ = node.meta.attributes
        return made
    return Tensor(node)


class GradientEdge(NamedTuple):
    """Where a gradient flows.

    Attributes
    ----------
    node : Node
    output_nr : int
        Which output of the node.
    """

    node: Any
    output_nr: int


def edge_of(node: Expr) -> GradientEdge:
    """The edge of a recorded node."""
    node = history(node)
    return GradientEdge(node_view(node), part_number(node))


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge that a tensor's gradient comes along.

    Raises
    ------
    RuntimeError
        For a tensor that does not require grad.
    """
    node = tensor.expr()
    if not node.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients"
        )
    return edge_of(node)


def target_of(edge: GradientEdge | Tensor) -> Expr:
    """The recorded node that an edge or a tensor stands for."""
    if isinstance(edge, Tensor):
        return edge.expr()
    view = edge.node
    if isinstance(view, AccumulateGrad):
        return view.variable.expr()
    node: Expr = view.node
    if node.op is APPLY:
        return result_of(node, edge.output_nr)
    note = note_of(node)
    if isinstance(note, Part):
        for reference in note.group.members:
            other = reference()
            if other is not None and part_number(other) == edge.output_nr:
                return other
    return node


def increment_version(tensor: Any) -> None:
    """Count a change of a tensor (or of several) that went unseen."""
    for t in (tensor,) if isinstance(tensor, Tensor) else tuple(tensor):
        t.count_change()


class _MultiHandle:
    """Removes a hook that is on several tensors."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Take the hook away."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> _MultiHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[..., None], *, mode: str = "all"
) -> _MultiHandle:
    """Call a function with the gradients of several tensors.

    Parameters
    ----------
    tensors : sequence of Tensor
    fn : callable
        With mode "all": takes a list of gradients (None for tensors that get none), once per
        backward pass, when the last of them is there. With "any": takes the first gradient.
    mode : {"all", "any"}

    Returns
    -------
    handle
        Whose `remove()` takes the hook away.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    seen: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

    def hook_for(place: int) -> Callable[[Tensor], None]:
        def hook(g: Tensor) -> None:
            work = RUNNING.passes[-1]
            if mode == "any":
                if work not in seen:
                    seen[work] = []
                    fn(g)
                return
            if work not in seen:
                expected = sum(work.will_reach(t) for t in tensors)
                seen[work] = [expected, [None] * len(tensors)]
            state = seen[work]
            state[1][place] = g
            state[0] -= 1
            if state[0] == 0:
                fn(state[1])

        return hook

    return _MultiHandle([t.register_hook(hook_for(k)) for k, t in enumerate(tensors)])


def _grad_fn(self: Tensor) -> GraphNode | None:
    """The operation that made this tensor, None for leaves."""
    node = self.expr()
    if not node.requires_grad or node.op is INPUT or node.op is KNOWN:
        return None
    return node_view(node)


def _output_nr(self: Tensor) -> int:
    """Which of its call's results this tensor is."""
    return part_number(self.expr())


def attach() -> None:
    """Give `Tensor` autograd's methods."""
    for name, member in METHODS.items():
        setattr(Tensor, name, member)
    for name, getter in {"grad_fn": _grad_fn, "output_nr": _output_nr}.items():
        setattr(Tensor, name, property(getter))
