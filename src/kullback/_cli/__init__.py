"""The command `kullback`: parse, call, print.

Each subcommand is one module with `add`, which adds its parser with `run` set to what it does: a function that prints and returns the exit
code, or None for 0. What it computes lives elsewhere.
Errors are one sentence on standard error and exit code 2. rich is imported only to print on a terminal, and not needed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from .._read import ReadError
from . import compare, explain, lint, pairs, profile
from .shared import as_options

# Inline numbers that begin with a minus, which argparse would take for an option.
_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        kind, _, names = message.partition("unrecognized arguments: ")
        if not kind and any(map(os.path.exists, names.split())):
            message += ": quote a pattern, such as 'shards/*.npy', that stands for several files"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # A leading space makes them positional; readers strip it.
    arguments = _parser().parse_args([f" {x}" if _NEGATIVE.match(x) else x for x in given])
    if sys.stderr is None:  # closed too, 2>&-; print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    if sys.stdout is None:  # closed by the shell, >&-; what runs may write there long after
        return _fail(arguments.command, "cannot write the output: standard output is closed")
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # whoever read this has had enough; what was decided stands
        return getattr(arguments, "code", 0)
    except OSError as error:
        _drop_output()
        return _fail(arguments.command, f"cannot write the output: {error.strerror or error}")
    except ReadError as error:
        return _fail(arguments.command, str(error))
    except (ValueError, TypeError) as error:
        return _fail(arguments.command, _as_options(str(error)))
    except KeyboardInterrupt:
        return 130
    return code or 0


def _drop_output() -> None:
    """What is left in the buffer must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(command: str, message: str) -> int:
    print(f"kullback {command}: {message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = _Parser(prog="kullback", description="Relative entropy (KL divergence), exact.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"kullback {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for command in (compare, explain, lint, pairs, profile):
        command.add(commands)
    return parser


def _as_options(message: str) -> str:
    """And it calls the sides p and q, which here are P and Q."""
    return re.sub(r"(?<![\w'])([pq])(?![\w'\[])", lambda side: side[1].upper(), as_options(message))
