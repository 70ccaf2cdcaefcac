"""torch's names of graph nodes.

The name follows from the public function that made the node (`symgrad.interface.Note`), or from
the node's op. Start reading at `node_name`.
"""

from __future__ import annotations

import re

from symgrad.autograd.applied import APPLY, RESULT, call_of
from symgrad.autograd.hooks import note_of
from symgrad.expr import Expr
from symgrad.op import CONSTANT, INPUT
from symgrad.ops.alias import head
from symgrad.storage import Note, Part

_BY_FUNCTION = {
    "alias": "Alias", "argsort": "Sort", "broadcast_to": "Expand", "chunk": "Split", "concat": "Cat",
    "concatenate": "Cat", "copy_slices": "CopySlices", "det": "LinalgDet", "divide": "Div",
    "true_divide": "Div", "expand_as": "Expand", "flatten": "View", "unflatten": "View", "view_as": "View",
    "hstack": "Cat", "vstack": "Cat", "dstack": "Cat", "inverse": "LinalgInvEx", "movedim": "Permute",
    "moveaxis": "Permute", "multiply": "Mul", "narrow": "Slice", "norm": "LinalgVectorNorm",
    "outer": "Mul", "ravel": "View", "reshape": "View", "rsub": "Rsub", "solve": "LinalgSolveEx",
    "square": "Pow", "subtract": "Sub", "swapaxes": "Transpose", "swapdims": "Transpose",
    "tile": "Repeat", "silu": "Silu", "linear": "Addmm", "scaled_dot_product_attention": "Bmm",
    "layer_norm": "NativeLayerNorm", "group_norm": "NativeGroupNorm", "batch_norm": "NativeBatchNorm",
    "cross_entropy": "NllLoss", "nll_loss": "NllLoss", "clip": "Clamp", "cross": "LinalgCross",
    "fliplr": "Flip", "flipud": "Flip", "meshgrid": "Expand", "linalg_cholesky": "LinalgCholeskyEx",
    "linalg_inv": "LinalgInvEx", "linalg_solve": "LinalgSolveEx", "linalg_norm": "LinalgVectorNorm",
    "linalg_vector_norm": "LinalgVectorNorm", "linalg_matrix_norm": "LinalgVectorNorm", "kron": "UnsafeView",
}  # fmt: skip

_BY_OP = {
    "cast": "ToCopy", "batched_product": "Bmm", "narrow_step": "Slice", "reshape": "View", "read": "Index",
    "join_axis": "Cat", "embed": "SliceBackward", "sum_axis": "Sum", "prod_axis": "Prod", "keep": "Where",
    "max_axis": "Max", "min_axis": "Min", "clamp_min": "Clamp", "clamp_max": "Clamp",
    "cumsum_axis": "Cumsum", "cumprod_axis": "Cumprod",
}  # fmt: skip

_OWN_NAMES = {"copy_slices": "CopySlices", "copy": "CopyBackwards"}
"""Nodes that torch's autograd names itself."""

_NUMBERED_BY_ARGUMENTS = frozenset({"sum", "mean", "prod", "squeeze", "nansum"})
"""Functions whose torch name ends in 0 without further arguments and in 1 with them."""


def camel(name: str) -> str:
    """A function's name as torch's nodes spell it."""
    return re.sub(r"(?:^|_|(?<=\d))([a-z])", lambda m: m[1].upper(), name)


def node_name(node: Expr) -> str:
    """torch's name of a node, such as ``MulBackward0``."""
    if node.op is INPUT:
        return "torch::autograd::AccumulateGrad"
    if node.op is RESULT:
        node = node.args[1]
    if node.op is APPLY:
        return call_of(node).name
    note = note_of(node)
    more = False
    if isinstance(note, Part):
        note = note.note
    if note is not None:
        function, more = note.name, note.more
    elif node.op is head:
        function = node.attrs[0]
    else:
        function = node.op.name
    if function in _OWN_NAMES:
        return f"torch::autograd::{_OWN_NAMES[function]}"
    if function in ("matmul", "linear", "dot", "mm", "mv", "bmm"):
        return _product_name(node)
    number = 0
    if function in ("clamp", "clip"):
        number = int(not any(a.shape for a in node.args[1:]))
    elif function in ("sub", "div") and node.op.name == function and node.args[0].op is CONSTANT:
        # torch writes a number minus a tensor, and over one, as functions of the tensor alone.
        return "RsubBackward1" if function == "sub" else "MulBackward0"
    if function in _NUMBERED_BY_ARGUMENTS:
        number = int(more)
    elif function in ("max", "min"):
        number = int(not more)
    elif function in ("pow", "float_power"):
        number = _power_number(node)
    known = _BY_OP if note is None and node.op is not head else _BY_FUNCTION
    return f"{known.get(function) or camel(function)}Backward{number}"


def _power_number(node: Expr) -> int:
    base, exponent = node.args[0], node.args[-1]
    if exponent.op is CONSTANT:
        return 0
    return 2 if base.op is CONSTANT else 1


def _product_name(node: Expr) -> str:
    """The name by the ranks of a product's result: vectors, matrices, batches."""
    note = note_of(node)
    if node.ndim == 0:
        return "DotBackward0"
    if node.ndim == 1:
        return "MvBackward0"
    if node.ndim == 2:
        return "MmBackward0"
    return (
        "BmmBackward0" if isinstance(note, Note) and note.name == "bmm" else "UnsafeViewBackward0"
    )


def aten_name(node: Expr) -> str:
    """torch's name of the operation that made a node, such as ``aten::mul``."""
    note = note_of(node)
    if isinstance(note, Part):
        note = note.note
    if note is not None:
        return f"aten::{note.name}"
    inner = node
    while (
        inner.op.family == "movement"
        and inner.args
        and inner.args[0].op.family in ("movement", "contract")
    ):
        inner = inner.args[0]
    if inner.op.family == "contract":
        return "aten::mm" if node.ndim == 2 else "aten::matmul"
    name = node.attrs[0] if node.op is head else node.op.name
    return f"aten::{name.removesuffix('_axis')}"
