"""The command `kullback`: parse, call, print.

Each subcommand is one function that adds its parser, with `run` set to what it does; what it computes lives elsewhere.
Errors are one sentence on standard error and exit code 2. rich is imported only to print on a terminal, and not needed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ._read import ReadError, read_distribution, read_labels

# Inline numbers that begin with a minus, which argparse would take for an option.
_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
_ASCII = str.maketrans(
    {"‖": "||", "·": "*", "▒": "-", "∞": "inf", "±": "+/-", "₂": "2", "₁": "1", "₀": "0"} | dict.fromkeys("█▉▊▋▌▍▎▏", "#")
)
_RICH_ROWS = 1000  # rich measures every cell; beyond this plain text is there at once


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    given = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    # A leading space makes them positional; readers strip it.
    arguments = _parser().parse_args([f" {x}" if _NEGATIVE.match(x) else x for x in given])
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # whoever read this has had enough
    except OSError as error:
        _drop_output()
        return _fail(arguments.command, f"cannot write the output: {error.strerror or error}")
    except ReadError as error:
        return _fail(arguments.command, str(error))
    except (ValueError, TypeError) as error:
        return _fail(arguments.command, _as_options(str(error)))
    except KeyboardInterrupt:
        return 130
    return 0


def _drop_output() -> None:
    """What is left in the buffer must not raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(command: str, message: str) -> int:
    print(f"kullback {command}: {message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = _Parser(prog="kullback", description="Relative entropy (KL divergence), exact.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"kullback {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    _add_explain(commands)
    return parser


def _add_explain(commands: Any) -> None:
    parser = commands.add_parser(
        "explain",
        help="every term of KL(P‖Q), by category",
        description="Every term of KL(P‖Q) and KL(Q‖P), the totals, and what dominates.",
        epilog="examples:\n"
        "  kullback explain 0.5,0.3,0.2 0.1,0.4,0.5 --labels cat,dog,owl\n"
        "  kullback explain 12,0,3 10,2,3 --form counts --prior 0.5 --base 2\n"
        "  kullback explain teacher.npy student.npy --form logits --temperature 2\n"
        "  kullback explain last_month.csv this_month.csv --form counts --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = "numbers (0.5,0.3,0.2) or a file: .csv (one row, one column, or label,value), .json (list or {label: value}), .npy"
    parser.add_argument("p", metavar="P", help=what)
    parser.add_argument("q", metavar="Q", help="the same; where both have labels, they are aligned by label")
    parser.add_argument(
        "--form", default="probs", help="what the numbers are: probs (default), log_probs, logits, counts, or a pair such as probs,logits"
    )
    parser.add_argument("--base", type=_base, default=None, help="of the logarithm: e (nats, default), 2 (bits), 10, ...")
    parser.add_argument("--labels", help="names of the categories: cat,dog,owl or a file with one a line")
    parser.add_argument(
        "--prior", type=float, help="pseudo-counts added to each category (counts), or the share of uniform mixed in (probs)"
    )
    parser.add_argument("--temperature", type=float, help="divides logits and log-probabilities")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--top", type=_positive, default=20, metavar="N", help="show the N categories with the largest terms (default 20)")
    shown.add_argument("--all", action="store_true", help="show every category")
    parser.add_argument("--json", action="store_true", help='print JSON, every category in it; inf and nan as "inf", "-inf", "nan"')
    parser.set_defaults(run=_explain)


def _base(text: str) -> float | None:
    try:
        return None if text.strip() == "e" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor e") from None


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text.strip()!r} is not a whole number above 0")
    return int(text)


def _explain(arguments: argparse.Namespace) -> None:
    from ._explain import explain

    p, q = read_distribution(arguments.p, name="P"), read_distribution(arguments.q, name="Q")
    labels = None if arguments.labels is None else read_labels(arguments.labels)
    if isinstance(p, dict) != isinstance(q, dict):
        with_labels, without = ("P", "Q") if isinstance(p, dict) else ("Q", "P")
        raise ReadError(f"{with_labels} has labels and {without} has none: give both as label,value files, or neither")
    form = tuple(part.strip() for part in arguments.form.split(","))
    found = explain(
        p,
        q,
        form=form if len(form) == 2 else arguments.form,
        base=arguments.base,
        labels=labels,
        prior=arguments.prior,
        temperature=arguments.temperature,
    )
    top = None if arguments.all else arguments.top
    if arguments.json:
        _write(json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    elif not (sys.stdout.isatty() and min(len(found.p), top or len(found.p)) <= _RICH_ROWS and _print_rich(found, top)):
        from ._report.text import to_text

        _write(to_text(found, top=top))


def _print_rich(found: Any, top: int | None) -> bool:
    try:
        from ._report.terminal import print_terminal
    except ImportError:
        return False
    print_terminal(found, sys.stdout, top=top)
    return True


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    print(text)


def _as_options(message: str) -> str:
    """The library speaks of arguments; the command has options."""
    message = re.sub(r"form=\('(\w+)', '(\w+)'\)", r"--form \1,\2", message)
    message = re.sub(r"form='(\w+)'", r"--form \1", message)
    message = message.replace("pass prior= to", "pass --prior to").replace("labels was passed", "--labels was passed")
    message = message.replace("pass mappings or pandas Series", "give label,value files")
    return re.sub(r"(?<![\w'])([pq])(?![\w'\[])", lambda side: side[1].upper(), message)
