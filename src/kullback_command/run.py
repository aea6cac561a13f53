"""One run of the command: parse, call, print.

COMMANDS names the subcommands. Each is a module of that name, which is imported only if the command line names it.
The module has `add`, which completes the parser, and `run`, which prints and returns the exit code, or None for 0.
What it computes lives elsewhere.
Errors are one sentence on standard error and exit code 2. An exception that nothing foresaw has an exit code of
its own, since 1 is a verdict of `--fail-over` or of the linter.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, NoReturn

from .shared import BUG, Refusal, version

COMMANDS = {
    "compare": "how far apart two models' outputs, or two tables, are",
    "explain": "every term of KL(P‖Q), by category",
    "lint": "wrong KLs in Python code and notebooks",
    "pairs": "the pairs of distributions with a formula",
    "profile": "keep a table's bins and counts, to compare others with it later",
}
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


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if sys.stderr is None:  # closed too, 2>&-; print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the end)
    with _stopped_by() as signals:
        try:
            code = _outcome(parser(given), given)
        except KeyboardInterrupt:
            code = 128 + signal.SIGINT
    return 128 + signals[0] if signals else code


def _outcome(parser: argparse.ArgumentParser, given: list[str]) -> int:
    arguments = argparse.Namespace(command="")
    try:
        try:
            # A leading space makes them positional; readers strip it.
            arguments = parser.parse_args([f" {x}" if _NEGATIVE.match(x) else x for x in given])
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
    except Refusal as error:
        return _fail(arguments, str(error))
    except (ValueError, TypeError) as error:
        from .words import of_error

        return _fail(arguments, of_error(error))
    except MemoryError:
        return _fail(arguments, "there is not enough memory")
    except Exception:
        import traceback

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


def parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser for a command line. It knows the options of the subcommands that the line names.

    A line that begins with a subcommand needs no other, and all others need the list of them."""
    listed = given[:1] if given and given[0] in COMMANDS else tuple(COMMANDS)
    whole = _Parser(prog="kullback", description="Relative entropy (KL divergence), exact.", allow_abbrev=False)
    commands = whole.add_subparsers(prog=whole.prog, dest="command", metavar="command", required=True)
    told = f"kullback {version()}" if "--version" in given else ""
    whole.add_argument("--version", action="version", version=told)
    for name in listed:
        form = argparse.RawDescriptionHelpFormatter
        own = commands.add_parser(name, help=COMMANDS[name], formatter_class=form, allow_abbrev=False)
        if name in given:
            module = import_module(f"{__package__}.{name}")
            module.add(own)
            own.set_defaults(run=module.run)
    return whole
