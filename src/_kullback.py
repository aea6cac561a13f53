"""The installed command. Outside the package, which takes some tenths of a second to import: a Ctrl-C in them shows no traceback."""

from __future__ import annotations


def main() -> int:
    try:
        from kullback._cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
