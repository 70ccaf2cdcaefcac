"""Attention with several heads. Start reading at `MultiheadAttention.forward`."""

from __future__ import annotations

import math
from typing import Any

from symgrad.creation import empty
from symgrad.interface import FUNCTIONS
from symgrad.nn import functional, init
from symgrad.nn.layers import Linear
from symgrad.nn.module import Module
from symgrad.nn.parameter import Parameter
from symgrad.tensor import Tensor


class MultiheadAttention(Module):
    """Attention of several heads side by side (arXiv:1706.03762).

    Parameters
    ----------
    embed_dim, num_heads : int
        Heads share the embedding in equal parts.
    dropout : float
        The probability with which a weight is dropped in training.
    bias : bool
    batch_first : bool
        Whether inputs are (batch, length, embedding) rather than (length, batch, embedding).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(
                "embed_dim and num_heads must be greater than 0, got "
                f"embed_dim={embed_dim} and num_heads={num_heads} instead"
            )
        if embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.in_proj_weight = Parameter(empty(3 * embed_dim, embed_dim, dtype=dtype))
        self.register_parameter(
            "in_proj_bias", Parameter(empty(3 * embed_dim, dtype=dtype)) if bias else None
        )
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew; biases are zero."""
        init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def _heads(self, x: Any, part: int) -> Any:
        """One of the three maps, as (batch, head, length, width)."""
        rows = slice(part * self.embed_dim, (part + 1) * self.embed_dim)
        bias = None if self.in_proj_bias is None else self.in_proj_bias[rows]
        mapped = functional.linear(x, self.in_proj_weight[rows], bias)
        return mapped.reshape(*mapped.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """What each query attends to, and with what weights.

        Parameters
        ----------
        key_padding_mask : Tensor of (batch, keys), optional
            True for keys that do not count, or numbers added to their scores.
        attn_mask : Tensor of (queries, keys) or (batch * heads, queries, keys), optional
            True for pairs that do not count, or numbers added to their scores.
        need_weights, average_attn_weights : bool
            Whether weights are returned, and whether as a mean over heads.
        """
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        single = query.ndim == 2
        if single:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self._heads(x, part) for part, x in enumerate((query, key, value)))
        scores = (q / math.sqrt(self.head_dim)) @ k.transpose(-2, -1)
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(scores.shape[0], self.num_heads, *attn_mask.shape[1:])
            scores = _masked(scores, attn_mask)
        if key_padding_mask is not None:
            scores = _masked(scores, key_padding_mask[:, None, None, :])
        weights = functional.softmax(scores, -1)
        kept = functional.dropout(weights, self.dropout, self.training)
        joined = (kept @ v).transpose(1, 2).reshape(query.shape)
        made: Any = self.out_proj(joined)
        shown: Any = None
        if need_weights:
            shown = kept.mean(1) if average_attn_weights else kept
        if single:
            return made.squeeze(0), None if shown is None else shown.squeeze(0)
        return (made if self.batch_first else made.transpose(0, 1)), shown


def _masked(scores: Any, mask: Any) -> Any:
    """Scores with a mask: -inf where it is true, or its numbers added."""
    if mask.dtype.category == 0:
        return FUNCTIONS["where"](mask, -math.inf, scores)
    return scores + mask
