"""Formulas of expressions: text, LaTeX, SymPy both ways, NumPy and C source.

Read only: nothing here changes an expression or how it is computed. Start reading at
`symgrad.formula.text`.
"""
