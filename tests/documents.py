"""The examples of a page: its prompts, the rows of its tables, and the output of its commands, in the order in which they stand.

Where a table has a column "gives", the cell to its left holds a call, and the two are an example: the call is run with the names that the
page has defined so far, and must give the number shown, to as many digits as are shown. "NaN", "inf", the name of an error, true and false
are such numbers too. A number after ~ is made of rounding errors, which differ from machine to machine: it must be more than a tenth off
the number that stands last in the row, and of about that size.

A block of text that begins with `$ kullback` is run too, and must print the rest of it; three dots stand for anything.
"""

from __future__ import annotations

import doctest
import math
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kullback_command import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _cells(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def rows(text: str) -> Iterator[tuple[int, str, str, str]]:
    """(line, call, what it gives, what the last call gives) of every table that says what its calls give."""
    gives: list[int] = []
    for number, line in enumerate(text.splitlines()):
        if not line.startswith("|"):
            gives = []
        elif not gives:
            gives = [i for i, cell in enumerate(_cells(line)) if cell == "gives"] or [-1]
        elif not line.startswith("|--") and gives != [-1]:
            cells = _cells(line)
            for i in gives:
                if cells[i]:
                    yield number, re.fullmatch(r"`+ ?(.*?) ?`+", cells[i - 1])[1], cells[i], cells[gives[-1]]


def gives(call: Callable[[], Any], shown: str, right: str) -> None:
    """Prints what a call gives, with as many digits as are shown."""
    try:
        value = call()
    except Exception as error:
        print(type(error).__name__)
        return
    number = value.item() if hasattr(value, "item") else value
    if isinstance(number, bool):
        print(str(number).lower())
    elif math.isnan(number := float(number)):
        print("NaN")
    elif math.isinf(number):
        print(number)
    elif shown.startswith("~"):
        wrong = abs(number - float(right)) > 0.1 * abs(float(right))
        print(shown if wrong and abs(number) < 30 * (float(shown[1:]) or 1e-7) else number)
    else:
        mantissa, e, _ = shown.lower().partition("e")
        digits = len(mantissa.partition(".")[2])
        text = f"{number:.{digits}{'e' if e else 'f'}}"
        print(re.sub(r"e([-+])0", r"e\1", text).replace("e+", "e"))


def commands(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, arguments, output) of every block that shows what `kullback` prints."""
    for block in re.finditer(r"^```text\n\$ kullback ([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, block.start()), block[1], block[2]


def run_command(arguments: str) -> None:
    main(shlex.split(arguments))


def _command(line: int, arguments: str, output: str) -> doctest.Example:
    return doctest.Example(f"run_command({arguments!r})", output, lineno=line, options={doctest.ELLIPSIS: True})


def _example(line: int, call: str, shown: str, right: str) -> doctest.Example:
    return doctest.Example(f"gives(lambda: {call}, {shown!r}, {right!r})", shown, lineno=line)


def examples(page: Path) -> doctest.DocTest:
    text = page.read_text()
    prompts = doctest.DocTestParser().get_examples(text, page.name)
    calls = [_example(*row) for row in rows(text)] + [_command(*block) for block in commands(text)]
    found = sorted(prompts + calls, key=lambda example: example.lineno)
    return doctest.DocTest(found, {"gives": gives, "run_command": run_command}, page.name, str(page), 0, text)
