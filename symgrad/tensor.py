"""The user's handle: a mutable tensor over immutable expressions.

Structures:

* `Tensor`: holds the node that is its value and history.
* `Family` and `Storage` (`symgrad.storage`): made only when a tensor gets views, aliases or is
  changed in place. A storage counts versions; a family is a history over it. Views share their
  base's family and keep the path that leads from the base to them; `detach` starts another family
  on the same storage. After a write each handle finds its node again on next use (`Tensor.expr`).
* `Slot`: where a leaf's gradient accumulates; it belongs to the tensor, not to the node, so an old
  graph over a former value still reaches the same `.grad`.

All below the handle is functional, so an in-place change never spoils a derivative. The functions
and methods made from the op registry are attached in `symgrad.interface`; autograd's methods by
`symgrad.autograd`. Start reading at `Tensor.expr`, then `Tensor.write`.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from symgrad import dtypes, runtime
from symgrad.errors import TracedValueError, user_line
from symgrad.expr import Expr
from symgrad.facts import Facts, Size
from symgrad.op import ACTIVE, INPUT, STATE, cast_to, grad_mode, input_node
from symgrad.ops.alias import detach
from symgrad.ops.complex_numbers import conj
from symgrad.ops.movement import expand
from symgrad.storage import (
    INFERENCE,
    MODES,
    SLICES,
    Barrier,
    Family,
    Slot,
    SlotReference,
    Step,
    Storage,
    joined,
    put_back,
    title,
)

__all__ = ["Size", "Tensor", "from_array", "names_of", "note_name"]


class Tensor(Facts):
    """A multi-dimensional array that records what is done to it.

    Made by `symgrad.tensor` and by operations; see there. A value is computed when somebody looks
    at it (`item`, `numpy`, printing, comparing in Python) or differentiates.

    Attributes
    ----------
    shape : tuple of int
    dtype : DType
    requires_grad : bool
    grad : Tensor or None
        Where `backward` accumulates, for leaves and retained tensors.
    """

    __slots__ = (
        "__dict__", "__weakref__", "_family", "_name", "_node", "_path", "_seen", "_slot", "_trace",
    )  # fmt: skip
    __array_priority__ = 1000

    # Attached by symgrad.interface and symgrad.autograd; declared for type checkers.
    backward: Callable[..., None]
    grad_fn: Any
    __setitem__: Callable[..., None]
    register_hook: Callable[..., Any]
    retain_grad: Callable[[], None]

    def __init__(self, node: Expr) -> None:
        self._node = node
        self._family: Family | None = None
        self._path: tuple[Step, ...] = ()
        self._seen = 0
        self._slot: Slot | None = None
        self._name: str | None = None
        self._trace = STATE.capture.number if ACTIVE and STATE.capture is not None else 0

    # -- node -------------------------------------------------------------------------

    def expr(self) -> Expr:
        """The node with this tensor's current value and history."""
        if ACTIVE and STATE.capture is not None:
            return STATE.capture.node_of(self)  # type: ignore[no-any-return]
        family = self._family
        if family is None or self._seen == family.storage.version:
            return self._node
        return self.own_expr()

    def here(self) -> Tensor:
        """The handle whose fields count in this thread: while it traces a function, a stand-in."""
        if ACTIVE and STATE.capture is not None:
            return STATE.capture.stand_in(self)  # type: ignore[no-any-return]
        return self

    def own_expr(self) -> Expr:
        """The node, whether or not a function is being traced."""
        family = self._family
        if family is None or self._seen == family.storage.version:
            return self._node
        node = family.current()
        with grad_mode(True):
            for op, attrs in self._path:
                node = op(node, **dict(zip(op.attributes, attrs, strict=True)))
        self._node = node
        self._seen = family.storage.version
        return node

    def family(self) -> Family:
        """The tensor's family, made on first need."""
        held = self.here()
        if held._family is None:
            storage = Storage()
            storage.inference = held._node.meta == INFERENCE
            held._family = Family(storage, held._node)
        return held._family

    def alias(self, node: Expr, steps: tuple[Step, ...]) -> Tensor:
        """A view of this tensor: `node`, reached from this one by `steps`."""
        made = Tensor(node)
        family = made._family = self.family()
        path = self.here()._path
        if family.base is None and not path:
            family.base = weakref.ref(self)
        made._path = path + steps
        made._seen = family.storage.version
        return made

    def slot(self) -> Slot:
        """The accumulation slot, made on first need."""
        if self._slot is None:
            self._slot = Slot(self)
        return self._slot

    # -- facts ------------------------------------------------------------------------

    def is_conj(self) -> bool:
        """Whether the tensor shows the conjugate of its memory."""
        return sum(op is conj for op, _ in self.here()._path) % 2 == 1

    def resolve_conj(self) -> Tensor:
        """The tensor in memory of its own if that holds the conjugate."""
        return self.clone() if self.is_conj() else self  # type: ignore[attr-defined, no-any-return]

    @property
    def name(self) -> str | None:
        """The name that formulas print."""
        return self._name

    @name.setter
    def name(self, name: str | None) -> None:
        self._name = name
        note_name(self._node, name)

    @property
    def _version(self) -> int:
        if self.is_inference():
            raise RuntimeError("Inference tensors do not track version counter.")
        family = self.here()._family
        if family is None:
            return 0
        storage = family.storage
        return storage.version - storage.quiet

    def is_inference(self) -> bool:
        """Whether the tensor, or the base that it is a view of, was made in inference mode."""
        held = self.here()
        if held._family is None:
            return bool(held._node.meta == INFERENCE)
        return held._family.storage.inference

    # -- autograd facts ---------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        return self.expr().requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Make this leaf record derivatives, or stop it; returns the tensor."""
        node = self.expr()
        if node.requires_grad == bool(requires_grad):
            return self
        if self.is_inference() and not MODES.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed. "
                "Make a clone of it first."
            )
        if node.requires_grad and node.op is not INPUT:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a "
                "computed variable in a subgraph that doesn't require differentiation use "
                "var_no_grad = var.detach()."
            )
        if requires_grad and node.dtype.category < 2:
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients "
                f"(got {node.dtype!r}); convert with .to(symgrad.float64)"
            )
        leaf = Expr(INPUT, (node,), (), node.shape, node.dtype, bool(requires_grad), node.value)
        if node.value is not None:
            leaf.args = ()
        if requires_grad:
            leaf.meta = SlotReference(self.slot())
            leaf.meta.attributes = self.__dict__
        self._become(leaf)
        note_name(leaf, self._name)
        return self

    def _become(self, node: Expr) -> None:
        """Take a node with the same value; views of this tensor follow."""
        held = self.here()
        held._node = node
        if held._family is not None and not held._path:
            held._family.node = node
            held._family.seen = held._seen = held._family.storage.version

    def count_change(self) -> None:
        """Count a change of this tensor's memory that went unseen."""
        held = self.here()
        family = held.family()
        family.current()
        family.storage.step(family, False)
        held._seen = family.storage.version

    @property
    def is_leaf(self) -> bool:
        node = self.expr()
        return not node.requires_grad or node.op is INPUT

    @property
    def grad(self) -> Tensor | None:
        slot = self._slot
        if slot is not None:
            return slot.grad
        node = self.expr()
        if node.requires_grad and node.op is not INPUT:
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad "
                "attribute won't be populated during autograd.backward(). If you indeed want the .grad "
                "field to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            if self._slot is not None:
                self._slot.grad = None
            return
        if not isinstance(value, Tensor):
            raise TypeError(
                f"assigned grad expected to be a Tensor or None but got grad of type {type(value)}"
            )
        if value.shape != self.shape:
            raise RuntimeError(
                f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size "
                f"'{list(self.shape)}'. Please ensure that the gradient and the tensor are the same size"
            )
        if value.dtype is not self.dtype:
            raise RuntimeError(
                "assigned grad has data of a different type: attempting to assign a gradient with "
                f"dtype '{value.dtype!r}' to a tensor with dtype '{self.dtype!r}'; convert with .to"
            )
        if value is self:
            raise RuntimeError("can't assign Variable as its own grad")
        self.slot().grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def detach(self) -> Tensor:
        """The same memory without history."""
        return self._detached(False)

    def _detached(self, quiet: bool) -> Tensor:
        node = self.expr()
        cut = detach(node) if node.requires_grad or STATE.dual_levels else node
        if node.value is not None and cut is not node:
            cut.value = node.value
        made = Tensor(cut)
        family = self.family()
        path = self.here()._path
        if path:
            base = family.current()
            own = base if not base.requires_grad else detach(base)
            made._family = Family(family.storage, own, quiet)
            made._path = path
        else:
            made._family = Family(family.storage, cut, quiet)
        made._seen = family.storage.version
        return made

    def detach_(self) -> Tensor:
        """Forget the history of this very tensor."""
        if self.here()._path:
            raise RuntimeError(
                "Can't detach views in-place. Use detach() instead. If you are using "
                "DistributedDataParallel (DDP) for training, this is not the case here."
            )
        node = self.expr()
        if node.requires_grad:
            cut = Expr(
                INPUT,
                (node,) if node.value is None else (),
                (),
                node.shape,
                node.dtype,
                False,
                node.value,
            )
            self._become(cut)
        return self

    @property
    def data(self) -> Tensor:
        return self._detached(True)

    @data.setter
    def data(self, value: Tensor) -> None:
        new, old = value.expr(), self.expr()
        if new.dtype is not old.dtype:
            raise RuntimeError(
                "Attempted to call `variable.set_data(tensor)`, but `variable` and `tensor` have "
                f"incompatible tensor type (got {new.dtype!r}, have {old.dtype!r}); convert with .to"
            )
        held = self.here()
        if held is not self:
            held._replace(new)
            return
        self._family, self._path = None, ()
        if new.shape == old.shape or not old.requires_grad:
            self._become(joined(new, old))
            return
        if old.op is not INPUT:
            raise RuntimeError(
                f"set_data: a computed tensor needs data of its shape (got {new.shape}, have "
                f"{old.shape}); use detach()"
            )
        leaf = Expr(INPUT, (new,), (), new.shape, new.dtype, True)
        leaf.meta = old.meta
        self._become(leaf)

    def _replace(self, new: Expr) -> None:
        """Give a stand-in other data: the tensor itself will be written at each call."""
        if new.shape != self._node.shape:
            raise RuntimeError(
                f"set_data: inside a compiled function a tensor from outside keeps its shape (got {new.shape}, "
                f"it has {self._node.shape}); do it outside, or return the new tensor"
            )
        with grad_mode(False):
            self.rebind(new)

    # -- writing ----------------------------------------------------------------------

    def check_writable(self) -> None:
        """Refuse an in-place change that would make no sense for autograd."""
        if not MODES.inference and self.is_inference():
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed. You can make a "
                "clone to get a normal tensor before doing inplace update."
            )
        if not STATE.grad:
            return
        node = self.expr()
        path = self.here()._path
        if node.requires_grad and node.op is INPUT and not path:
            raise RuntimeError(
                "a leaf Variable that requires grad is being used in an in-place operation. "
                "Use no_grad() around it, or an out-of-place operation."
            )
        if not path:
            return
        base = self.family().current()
        if not base.requires_grad:
            return
        for op, _ in path:
            if isinstance(op, Barrier):
                raise RuntimeError(op.reason)
        if base.op is INPUT:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place "
                "operation. Use no_grad() around it, or an out-of-place operation."
            )

    def write(self, new: Expr) -> Tensor:
        """Replace this tensor's value in place, for its views and aliases too.

        Parameters
        ----------
        new : Expr
            Broadcastable to this tensor's shape; converted to its dtype.
        """
        self.check_writable()
        return self.rebind(new)

    def rebind(self, new: Expr) -> Tensor:
        """`write`, when the change is known to make sense for autograd."""
        old = self.expr()
        if new.dtype is not old.dtype:
            if new.dtype.category > old.dtype.category:
                raise RuntimeError(
                    f"result type {title(new.dtype)} can't be cast to the desired output type "
                    f"{title(old.dtype)}; convert the tensor first"
                )
            new = cast_to(new, old.dtype)
        if new.shape != old.shape:
            fits = len(new.shape) <= len(old.shape) and all(
                a in (1, b) for a, b in zip(new.shape[::-1], old.shape[::-1], strict=False)
            )
            if not fits:
                raise RuntimeError(
                    f"output with shape {list(old.shape)} doesn't match the broadcast shape "
                    f"{list(new.shape)}"
                )
            new = expand(new, old.shape)
        if not STATE.grad and old.requires_grad:
            new = joined(new, old)
        held = self.here()
        family = held.family()
        storage = family.storage
        base = family.current()
        if held._path:
            base = held._written_base(base, new)
            if base.requires_grad and base.meta is None:
                base.meta = SLICES
            if not STATE.grad and family.node.requires_grad:
                base = joined(base, family.node)
        else:
            base = new
        family.node = base
        storage.step(family, family.quiet)
        held._node = new
        held._seen = storage.version
        if storage.outside is not None:
            runtime.evaluate([base])
            storage.outside[...] = base.value
            base.value = storage.outside
        return self

    def _written_base(self, base: Expr, value: Expr) -> Expr:
        """The base after the view at the end of this tensor's path got `value`."""
        nodes = [base]
        steps = [(op, dict(zip(op.attributes, attrs, strict=True))) for op, attrs in self._path]
        for op, attrs in steps[:-1]:
            nodes.append(op(nodes[-1], **attrs))
        for (op, attrs), node in zip(reversed(steps), reversed(nodes), strict=True):
            value = put_back(op, attrs, node, value)
        return value

    # -- values -----------------------------------------------------------------------

    def look(self) -> np.ndarray:
        """The value as an array that must not be written."""
        node = self.expr()
        if node.value is None:
            if STATE.tracing and runtime.look(node) is None:
                raise TracedValueError(
                    f"compile: the value of a traced tensor of shape {node.shape} was asked for{user_line()}; "
                    "a compiled function cannot branch on it or read it in Python; use symgrad.where to "
                    "choose by condition"
                )
            runtime.evaluate([node])
        return runtime.array_of(node)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """The value as a NumPy array that shares this tensor's memory.

        Raises
        ------
        RuntimeError
            For a tensor that requires grad, unless `force`.
        """
        if self.requires_grad:
            if not force:
                raise RuntimeError(
                    "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
                )
            return self.detach().numpy()
        if self.is_conj():
            raise RuntimeError(
                "Can't call numpy() on Tensor that has conjugate bit set. Use "
                "tensor.resolve_conj().numpy() instead."
            )
        array = self._shared()
        for op, attrs in self.here()._path:
            array = op.ref(array, **dict(zip(op.attributes, attrs, strict=True)))
        return array

    def shared_memory(self) -> np.ndarray:
        """The memory of this tensor's base, which the outside may write from now on."""
        return (self.detach() if self.requires_grad else self)._shared()

    def _shared(self) -> np.ndarray:
        held = self.here()
        family = held.family()
        storage = family.storage
        if storage.outside is None:
            base = family.current()
            if base.value is None:
                runtime.evaluate([base])
            own = storage.outside = runtime.copy_of(base)
            family.node = input_node(base.shape, base.dtype, own)
            storage.step(family, True)
            if not held._path:
                held._node = family.node
                held._seen = storage.version
        return storage.outside

    def __getitem__(self, key: Any) -> Tensor:
        raise NotImplementedError

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        from symgrad.printing import tensor_text

        return tensor_text(self)

    # -- copies -----------------------------------------------------------------------

    def __reduce_ex__(self, protocol: Any) -> Any:
        node = self.expr()
        if node.requires_grad and node.op is not INPUT:
            raise RuntimeError(
                "pickle: only leaf tensors can be pickled together with requires_grad; use "
                ".detach() first"
            )
        grad = None if self._slot is None else self._slot.grad
        return _rebuilt, (self.look(), node.dtype.name, node.requires_grad, self._name, grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        node = self.expr()
        if node.requires_grad and node.op is not INPUT:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment; use .detach().clone()"
            )
        made: Tensor = _rebuilt(self.look(), node.dtype.name, node.requires_grad, self._name, None)
        memo[id(self)] = made
        if self._slot is not None and self._slot.grad is not None:
            made.grad = from_array(np.array(self._slot.grad.look()))
        return made


def base_of(family: Family) -> Tensor:
    """The tensor of a family that is no view; made anew if nobody holds it any more."""
    found = None if family.base is None else family.base()
    if found is None:
        found = Tensor(family.current())
        found._family = family
        found._seen = family.storage.version
        family.base = weakref.ref(found)
    return found


_NAMES: weakref.WeakKeyDictionary[Expr, str] = weakref.WeakKeyDictionary()


def note_name(node: Expr, name: str | None) -> None:
    """Remember the user's name of a node, for formulas."""
    if name is not None:
        _NAMES[node] = name


def names_of() -> weakref.WeakKeyDictionary[Expr, str]:
    """The user's names of nodes."""
    return _NAMES


def _rebuilt(
    array: np.ndarray, dtype: str, requires_grad: bool, name: str | None, grad: Tensor | None
) -> Tensor:
    kind = dtypes.by_name(dtype)
    made = Tensor(input_node(array.shape, kind, np.array(array, kind.numpy)))
    made._name = name
    if requires_grad:
        made.requires_grad_()
    if grad is not None:
        made.grad = grad
    return made


def plain_array(array: np.ndarray) -> np.ndarray:
    """The memory of an array of a subclass as a plain array.

    Raises
    ------
    TypeError
        For a masked array, whose mask would be forgotten.
    """
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"a masked array has no counterpart (got one of shape {array.shape}); pass array.filled(value)"
        )
    return np.asarray(array)


def from_array(array: np.ndarray, requires_grad: bool = False, name: str | None = None) -> Tensor:
    """A leaf over an array that nobody else writes."""
    if type(array) is not np.ndarray:
        array = plain_array(array)
    made = Tensor(input_node(array.shape, dtypes.from_numpy(array.dtype), array))
    made._name = name
    if requires_grad:
        made.requires_grad_()
    elif name is not None:
        note_name(made._node, name)
    if MODES.inference:
        made._node.meta = made._node.meta or INFERENCE
    return made
