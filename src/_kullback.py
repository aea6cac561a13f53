"""The installed command, which `python -m kullback` runs too.

It stands outside the package, whose import takes some tenths of a second. A Ctrl-C during that import shows no traceback. An import that
fails exits with the code of a bug.
"""

from __future__ import annotations


def main() -> int:
    try:
        from kullback._cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        traceback.print_exc()
        return 70
