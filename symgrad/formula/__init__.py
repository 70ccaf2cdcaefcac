"""Formulas of expressions: text, LaTeX, SymPy both ways, NumPy and C source. Start at `text`."""

from symgrad.formula.text import text

__all__ = ["text"]
