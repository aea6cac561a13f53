"""`kullback compare`: finds out what it was given, and prints, writes or judges the record."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kullback._kernels import compiled
from kullback._read import ReadError
from kullback._reduce import check_base

from . import compare_tables
from .shared import base, between, positive, write

# Seconds after which a person asks what takes so long.
_LONG = 10.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "How far Q is from P, the reference: two models' outputs, row by row, or two tables, column by column."
    parser.epilog = (
        "examples:\n"
        "  kullback compare reference.npy quantised.npy --form logits --report out.html\n"
        "  kullback compare 'f16/*.safetensors' 'q4/*.safetensors' --fail-over 0.1\n"
        "  kullback compare f16.kld q4.kld --markdown\n"
        "  kullback compare last_month.parquet this_month.parquet --json"
    )
    what = (
        "model outputs: .npy, .npz, .safetensors, .pt arrays [rows, categories], or llama.cpp logits files; "
        "tables: .csv, .parquet, .jsonl, or a profile; or a directory or a quoted pattern of these"
    )
    parser.add_argument("p", metavar="P", help=what)
    parser.add_argument("q", metavar="Q", help="the same")
    parser.add_argument("--base", type=base, default=None, help="of the logarithm: e (nats, default), 2 (bits), 10, ...")
    parser.add_argument(
        "--top",
        type=positive,
        metavar="N",
        help="of models, list the N worst rows (default: 5; 20 with --markdown, --json or in a report); "
        "of tables, the N most different columns and pairs (default: 20; 30 with --markdown; JSON and reports have all)",
    )
    parser.add_argument("--report", metavar="FILE", help="write a page of pictures and tables that opens offline")
    parser.add_argument(
        "--fail-over",
        type=between(0, math.inf, "of at least 0"),
        metavar="X",
        help="exit with 1 if KL(P‖Q) is over X: of models, its mean over the rows; of tables, that of any column or pair, "
        "in the unit of --base, whatever the noise floor",
    )
    printed = parser.add_mutually_exclusive_group()
    printed.add_argument("--json", action="store_true", help='print JSON (docs/compare.md); inf and nan as "inf", "-inf", "nan"')
    printed.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    models = parser.add_argument_group("model outputs")
    models.add_argument("--form", help="what the numbers are: probs, log_probs, logits, counts, or a pair such as probs,logits")
    models.add_argument("--tokens", metavar="FILE", help="the category that came true in each row: perplexities, and Δp of this one")
    models.add_argument(
        "--allow-partial", action="store_true", help="go on with what is whole: cut files, missing shards, unequal lengths, rows with NaN"
    )
    compare_tables.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    from kullback._report.files import check_target, write_whole
    from kullback._report.page import jinja

    if arguments.report is not None:
        inputs = (arguments.p, arguments.q, *([] if arguments.tokens is None else [arguments.tokens]))
        check_target(arguments.report, inputs)  # before the work, not after it
        jinja()
    try:
        found = _compare(arguments)
    except OSError as error:  # of reading: main() would take it for one of writing
        raise ReadError(f"{error.filename or 'input'}: {error.strerror or error}") from None
    unwritten = None
    if arguments.report is not None:
        try:
            write_whole(arguments.report, found.to_html())
        except ReadError as error:
            unwritten = error  # raised when the figures, which took the time, are out
    sentence = None if arguments.fail_over is None else found.over(arguments.fail_over)
    arguments.code = 2 if unwritten else int(sentence is not None)
    top = {} if arguments.top is None else {"top": arguments.top}
    if arguments.json:
        write(found.to_json(), "json")
    elif arguments.markdown:
        write(found.to_markdown(**top), "markdown")
    else:
        write(found.to_text(**top))
    sys.stdout.flush()
    if sentence is not None:
        print(f"kullback compare: {sentence}", file=sys.stderr)
    if unwritten is not None:
        raise unwritten
    return int(sentence is not None)


def _compare(arguments: argparse.Namespace) -> Any:
    from kullback._compare.kinds import kind_of

    check_base(arguments.base)
    if kind_of(arguments.p, arguments.q) == "tables":
        from kullback._compare.tables import compare_tables as compare

        for name in ("form", "tokens", "allow_partial"):
            if getattr(arguments, name):
                raise ReadError(f"--{name.replace('_', '-')} is for model outputs, and these are tables")
        return compare(arguments.p, arguments.q, base=arguments.base, progress=sys.stderr.isatty(), **compare_tables.options(arguments))
    from kullback._compare.models import compare_models

    given = compare_tables.given(arguments)
    if given:
        raise ReadError(f"--{given[0]} is for tables, and these are model outputs")
    form = None if arguments.form is None else tuple(part.strip() for part in arguments.form.split(","))
    begin = time.monotonic()
    with _progress() as progress:
        found = compare_models(
            arguments.p,
            arguments.q,
            form=form if form is None or len(form) == 2 else arguments.form.strip(),
            tokens=arguments.tokens,
            base=arguments.base,
            top=max(20, arguments.top or 0),
            allow_partial=arguments.allow_partial,
            progress=progress,
        )
    if time.monotonic() - begin > _LONG and compiled.kernels is None:
        print(
            "kullback compare: installed without its compiled kernel, this took several times as long as it need have; "
            "with a C compiler, install kullback again (pip install --force-reinstall --no-cache-dir)",
            file=sys.stderr,
        )
    return found


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar with rate and remaining time on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield _percent
        sys.stderr.write("\r\x1b[K")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows · {task.fields[rate]}/s ·"), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, rate="-")
        begin = time.monotonic()

        def show(done: int, total: int) -> None:
            # Since the beginning: rich's own needs several blocks, which small files have not.
            bar.update(task, completed=done, total=total, rate=f"{done / max(time.monotonic() - begin, 1e-9):,.0f}")

        yield show


def _percent(done: int, total: int) -> None:
    sys.stderr.write(f"\r{100 * done // total}% of {total:,} rows")
    sys.stderr.flush()
