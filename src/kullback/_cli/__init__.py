"""The command `kullback`: parse, call, print.

Each subcommand is one module with `add`, which adds its parser with `run` set to what it does: a function that prints and returns the exit
code, or None for 0. What it computes lives elsewhere.
Errors are one sentence on standard error and exit code 2. An exception that nothing foresaw has an exit code of its own, since 1 is a
verdict: of `--fail-over`, or of the linter. rich is imported only to print on a terminal, and not needed.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from .._read import ReadError
from . import compare, explain, lint, pairs, profile
from .shared import BUG, as_options

CLOSED = 128 + 13  # as a shell reports a program that SIGPIPE ended
_PATIENCE = 2.0  # seconds after a signal in which another one changes nothing

# Inline numbers that begin with a minus, which argparse would take for an option.
_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        kind, _, names = message.partition("unrecognized arguments: ")
        if not kind and any(map(os.path.exists, names.split())):
            message += ": quote a pattern, such as 'shards/*.npy', that stands for several files"
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse's own hides that nothing could be written."""
        (file or sys.stderr).write(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if sys.stderr is None:  # closed too, 2>&-; print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    with _stopped_by() as signals:
        try:
            code = _outcome(given)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    return 128 + signals[0] if signals else code


def _outcome(given: list[str]) -> int:
    arguments = argparse.Namespace(command="")
    try:
        try:
            # A leading space makes them positional; readers strip it.
            arguments = _parser().parse_args([f" {x}" if _NEGATIVE.match(x) else x for x in given])
            if sys.stdout is None:  # closed by the shell, >&-; what runs may write there long after
                return _fail(arguments, "cannot write the output: standard output is closed")
            code = arguments.run(arguments) or 0
        except SystemExit:  # of argparse, after help or the version
            _flush()
            raise
        _flush()
    except BrokenPipeError:
        _drop_output()  # whoever read this has had enough; a verdict stands, and success would be a lie
        return getattr(arguments, "code", 0) or CLOSED
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else "cannot write the output: "
        return _fail(arguments, f"{where}{error.strerror or error}")
    except ReadError as error:
        return _fail(arguments, str(error))
    except (ValueError, TypeError) as error:
        return _fail(arguments, _as_options(str(error)))
    except MemoryError:
        return _fail(arguments, "there is not enough memory")
    except Exception:
        what = "this is a bug in kullback; please report it with the lines below"
        return _fail(arguments, f"{what}\n{traceback.format_exc().rstrip()}", BUG)
    return code


@contextmanager
def _stopped_by() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP interrupt the command as Ctrl-C does, so that it removes its temporary files. The list receives their numbers.

    A signal that the caller ignores, as nohup does, stays ignored."""
    received: list[int] = []
    until = 0.0

    def stop(number: int, frame: Any) -> None:
        nonlocal until
        if time.monotonic() > until:  # the same wish again must not interrupt the removal
            until = time.monotonic() + _PATIENCE
            received.append(number)
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # Windows has two of them
            if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


def _drop_output() -> None:
    """What is left in the buffer must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(arguments: argparse.Namespace, message: str, code: int = 2) -> int:
    with suppress(OSError):  # standard error may be full or closed as well; the exit code is left
        print(f"{' '.join(('kullback', arguments.command)).strip()}: {message}", file=sys.stderr, flush=True)
    return code


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
