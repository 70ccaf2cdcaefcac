"""Checks that every op passes, written once for all ops; what the tests of the project are made of.

An op or composite states samples, error samples and a reference; from these follow checks of
value, shape and dtype (`check_value`), bits (`check_bits`), derivatives (`check_derivatives`),
special values (`check_special`) and errors (`check_error`). `surviving_mutants` tests the
checks themselves. ``python -m symgrad.testing OP`` reports on one op. Start reading at
`symgrad.testing.samples`. `assert_close` is torch.testing's, for anybody's tests.
"""

from symgrad.testing.bits import check_bits
from symgrad.testing.comparison import assert_close
from symgrad.testing.derivatives import (
    along_symmetric,
    central_difference,
    check_derivatives,
    has_derivative,
)
from symgrad.testing.evaluator import (
    Evaluator,
    cut_finely,
    in_little_room,
    in_segments,
    run,
    same_bits,
    threaded,
)
from symgrad.testing.mutants import derivative_mutants, lowering_mutant, surviving_mutants
from symgrad.testing.samples import Drawn, Subject, call, draw, nodes, subject, subjects, truth
from symgrad.testing.surface import check_backward, check_compiled, check_surface
from symgrad.testing.values import check_error, check_special, check_value, ulps

__all__ = [
    "Drawn",
    "Evaluator",
    "Subject",
    "along_symmetric",
    "assert_close",
    "call",
    "central_difference",
    "check_backward",
    "check_bits",
    "check_compiled",
    "check_derivatives",
    "check_error",
    "check_special",
    "check_surface",
    "check_value",
    "cut_finely",
    "derivative_mutants",
    "draw",
    "has_derivative",
    "in_little_room",
    "in_segments",
    "lowering_mutant",
    "nodes",
    "run",
    "same_bits",
    "subject",
    "subjects",
    "surviving_mutants",
    "threaded",
    "truth",
    "ulps",
]
