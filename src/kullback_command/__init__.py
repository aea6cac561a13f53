"""The command `kullback`, which `python -m kullback` runs too: arguments and printing.

`main` imports all other modules, so that a Ctrl-C while they are loaded shows no traceback. An import that fails
ends with the exit code of a bug.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    try:
        from .run import run

        return run(argv)
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        traceback.print_exc()
        return 70
