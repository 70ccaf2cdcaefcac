"""The command line: ``python -m symgrad explain | bench | run``. Start reading at `main`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

EXAMPLES = """examples:
  python -m symgrad explain model.py:loss --at x=1.5,y=2
  python -m symgrad explain model.py:energy --at "x=[0.1,0.2,0.3],k=2"
  python -m symgrad bench
  python -m symgrad bench chain logistic --seconds 2
  python -m symgrad run script.py --epochs 3
"""


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    import symgrad

    top = argparse.ArgumentParser(
        prog="python -m symgrad",
        description=(
            "torch's autograd on a symbolic core: look at what symgrad makes of a function, or time "
            "it next to NumPy."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"symgrad {symgrad.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    explain = commands.add_parser(
        "explain",
        help="a function's value, formula, gradient, kernels, accuracy and speed",
        description=(
            "Print a function's value, its formula, its gradient's formula, the fused kernels that "
            "compute both, how far the gradient is from finite differences, and the time per call "
            "compiled and on plain NumPy."
        ),
    )
    explain.add_argument("target", metavar="FILE.py:FUNCTION", help="a function of tensors that returns one")
    explain.add_argument(
        "--at",
        metavar="NAME=VALUE,...",
        default="",
        help="where to look: numbers or (nested) lists of numbers; parameters left out take their defaults",
    )

    bench = commands.add_parser(
        "bench",
        help="symgrad's own benchmarks next to NumPy",
        description=(
            "Time compiled functions next to the same in NumPy, with derivatives written by hand, in "
            "turns. A ratio above 1 means that symgrad is faster."
        ),
    )
    bench.add_argument("names", metavar="NAME", nargs="*", help="which; all by default")
    bench.add_argument("--seconds", type=float, default=0.5, help="time per function (default: 0.5)")
    bench.add_argument("--list", action="store_true", help="list the benchmarks and stop")

    run = commands.add_parser(
        "run",
        help="run a script that was written for torch",
        description="Run a script in which ``import torch``, and imports of its submodules, give symgrad.",
    )
    run.add_argument("script", metavar="SCRIPT.py")
    run.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own arguments")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    grammar = parser()
    chosen = grammar.parse_args(arguments)
    if chosen.command == "explain":
        from symgrad.explain import ExplainError, explain

        try:
            explain(chosen.target, chosen.at)
        except ExplainError as error:
            print(f"explain: {error}", file=sys.stderr)
            return 2
        return 0
    if chosen.command == "run":
        from symgrad import compat

        try:
            compat.run(chosen.script, chosen.arguments)
        except FileNotFoundError as error:
            if error.filename is not None:
                raise
            print(error, file=sys.stderr)
            return 2
        return 0

    from symgrad.bench import BENCHMARKS, run

    unknown = [n for n in chosen.names if n not in BENCHMARKS]
    if unknown:
        print(f"bench: no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    if not chosen.seconds > 0:
        print(f"bench: --seconds must be positive (got {chosen.seconds})", file=sys.stderr)
        return 2
    if chosen.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:<12}{benchmark.title}")
        return 0
    run(chosen.names, chosen.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
