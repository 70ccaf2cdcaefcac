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
  python -m symgrad bench --vs torch,jax --json figures.json
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
    explain.add_argument(
        "target", metavar="FILE.py:FUNCTION", help="a function of tensors that returns one"
    )
    explain.add_argument(
        "--at",
        metavar="NAME=VALUE,...",
        default="",
        help="where to look: numbers or (nested) lists of numbers; parameters left out take their defaults",
    )

    bench = commands.add_parser(
        "bench",
        help="symgrad's own benchmarks next to NumPy, torch and jax",
        description=(
            "Time compiled functions next to the same in NumPy, with derivatives written by hand, and "
            "in other compilers, in turns. A ratio above 1 means that symgrad is faster."
        ),
    )
    bench.add_argument("names", metavar="NAME", nargs="*", help="which; all by default")
    bench.add_argument(
        "--seconds", type=float, default=0.5, help="time per function (default: 0.5)"
    )
    bench.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    bench.add_argument(
        "--vs",
        metavar="LIBRARY,...",
        default="",
        help="also time these, if installed: torch (torch.compile), jax (jax.jit)",
    )
    bench.add_argument("--json", metavar="FILE", help="write all figures to a file")
    bench.add_argument(
        "--plot",
        metavar="FILE",
        help="draw each program's steps under the machine's roof (needs matplotlib)",
    )
    bench.add_argument(
        "--write", metavar="FILE.md", help="renew the measured part of a Markdown document"
    )

    run = commands.add_parser(
        "run",
        help="run a script that was written for torch",
        description="Run a script in which ``import torch``, and imports of its submodules, give symgrad.",
    )
    run.add_argument("script", metavar="SCRIPT.py")
    run.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="the script's own arguments"
    )
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
    return _bench(chosen)


def _bench(chosen: argparse.Namespace) -> int:
    """The command `bench`."""
    import json
    from pathlib import Path

    from symgrad.bench import BENCHMARKS, PEERS, document, roofline, run

    peers = [p for p in chosen.vs.split(",") if p]
    names = chosen.names or list(BENCHMARKS)
    files = [Path(f) for f in (chosen.json, chosen.plot, chosen.write) if f]
    wrong = None
    for n in names:
        if n not in BENCHMARKS:
            wrong = f"no benchmark {n!r}; there are {', '.join(BENCHMARKS)}"
    for p in peers:
        if p not in PEERS:
            wrong = f"--vs knows no {p!r}; it knows {', '.join(PEERS)}"
    for f in files:
        if not f.absolute().parent.is_dir():
            wrong = f"no folder {str(f.parent)!r} to write {f.name} to; make it first"
    if not chosen.seconds > 0:
        wrong = f"--seconds must be positive (got {chosen.seconds})"
    if chosen.plot and not roofline.can_draw():
        wrong = "--plot needs matplotlib, which is not installed; pip install matplotlib"
    if wrong:
        print(f"bench: {wrong}", file=sys.stderr)
        return 2
    if chosen.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"{name:<12}{benchmark.title}")
        return 0

    found = document.facts()
    rows = run(names, chosen.seconds, peers)
    if chosen.json:
        text = json.dumps(document.as_data(rows, found), indent=1)
        Path(chosen.json).write_text(text + "\n", encoding="utf-8")
    if chosen.plot:
        roofline.draw(roofline.reports(names), chosen.plot)
    if chosen.write:
        target = Path(chosen.write)
        before = target.read_text(encoding="utf-8") if target.exists() else ""
        text = document.written(before, document.measured_part(rows, found))
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
