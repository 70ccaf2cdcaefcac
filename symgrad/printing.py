"""How tensors print, in torch's manner. Start reading at `tensor_text`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from symgrad import dtypes
from symgrad.op import INPUT

if TYPE_CHECKING:
    from symgrad.tensor import Tensor


def tensor_text(t: Tensor) -> str:
    """`tensor(values, dtype=..., requires_grad=True)`; dtype only where it is not the default."""
    node = t.expr()
    if node.value is None and node.op is INPUT and not node.args:
        return f"<traced tensor of shape {node.shape}, {node.dtype.name}>"
    array = t.look()
    if array.dtype.kind in "fc":
        body = np.array2string(
            array, separator=", ", prefix="tensor(", precision=4, floatmode="maxprec_equal",
            threshold=1000,
        )  # fmt: skip
    else:
        body = np.array2string(array, separator=", ", prefix="tensor(", threshold=1000)
        body = body.replace("True", " True") if array.dtype.kind == "b" and array.ndim else body
    parts = [body]
    default = dtypes.get_default_dtype()
    usual = (default, default.to_complex(), dtypes.int64, dtypes.bool_)
    if node.dtype not in usual or (node.dtype is not dtypes.get_default_dtype() and not array.size):
        parts.append(f"dtype={node.dtype!r}")
    if node.requires_grad:
        made_by = "" if node.op is INPUT else t.grad_fn.name().rpartition("::")[2]
        parts.append(f"grad_fn=<{made_by}>" if made_by else "requires_grad=True")
    return f"tensor({', '.join(parts)})"
