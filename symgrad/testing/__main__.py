"""The command ``python -m symgrad.testing OP ...``: a report on each op."""

from __future__ import annotations

import sys

from symgrad.testing.report import report


def main(names: list[str]) -> int:
    """Print the reports; 1 if a check failed, 2 if there is nothing to report on."""
    if not names:
        print("usage: python -m symgrad.testing OP ...", file=sys.stderr)
        return 2
    failed = False
    for name in names:
        try:
            shown = report(name)
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return 2
        print(shown)
        failed = failed or "FAILED" in shown
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
