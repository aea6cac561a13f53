"""`kullback lint`."""

from __future__ import annotations

import argparse
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kullback_lint.check import Unparsable, is_fault, unparsable
from kullback_lint.formats import github, json, sarif, text
from kullback_lint.pages import page
from kullback_lint.rules import BY_CODE
from kullback_lint.run import Linted, Options, decode, encoding_of, lint_text
from kullback_lint.run import run as lint
from kullback_lint.settings import SettingsError, codes, read_settings

from .shared import BUG, Refusal, version, write

_FORMATS = ("text", "json", "sarif", "github")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Finds wrong KL divergences in Python code and notebooks. Parses only: nothing it reads is imported or run. "
        "Exit code 1 on findings of severity error or warning (information counts where its rule is selected by number), 2 on misuse "
        "or a file that cannot be read."
    )
    parser.epilog = (
        "examples:\n"
        "  kullback lint src notebooks/train.ipynb\n"
        "  kullback lint --diff src            what --fix would change\n"
        "  kullback lint --explain KL006       the page of a rule\n"
        "  kullback lint - < loss.py           standard input\n"
        "silence a line:  # kullback: ignore[KL006]\n"
        "settings:        [tool.kullback.lint] in pyproject.toml, with select, ignore, exclude"
    )
    parser.add_argument("paths", metavar="PATH", nargs="*", help="files, directories, notebooks, or - for standard input (default: here)")
    parser.add_argument(
        "--select", action="append", metavar="RULES", help="only these rules: KL006, or a beginning such as KL00; commas, or repeat"
    )
    parser.add_argument("--ignore", action="append", metavar="RULES", help="not these rules")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--format", choices=_FORMATS, default="text", help="text (default), json, sarif, or github (annotations)")
    shown.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    mend = parser.add_mutually_exclusive_group()
    mend.add_argument("--fix", action="store_true", help="mend what can be mended mechanically, and report the rest")
    mend.add_argument("--diff", action="store_true", help="show what --fix would change, and change nothing")
    parser.add_argument(
        "--stdin-name", default="<stdin>", metavar="NAME", help="the name standard input is reported under; .ipynb for a notebook"
    )
    parser.add_argument("--explain", metavar="RULE", help="print the page of a rule and stop")


def run(arguments: argparse.Namespace) -> int:
    if arguments.explain is not None:
        code = arguments.explain.strip().upper()
        if code not in BY_CODE:
            raise Refusal(f"--explain: {code} is no rule (they are {min(BY_CODE)} to {max(BY_CODE)})")
        write(page(code).rstrip())
        return 0
    try:
        select, ignore = _codes(arguments.select, "--select"), _codes(arguments.ignore, "--ignore")
        settings = read_settings(Path()).over(select=select, ignore=ignore)
    except SettingsError as error:
        raise Refusal(str(error)) from None
    return _report(arguments, Options(settings, fix=arguments.fix or arguments.diff))


def _codes(given: list[str] | None, where: str) -> tuple[str, ...] | None:
    return None if given is None else codes([code for part in given for code in part.split(",")], where)


def _linted(arguments: argparse.Namespace, options: Any) -> Iterator[Any]:
    paths = arguments.paths or ["."]
    for path in paths:
        if path == "-":
            continue
        if not Path(path).exists():
            raise Refusal(f"{path} does not exist")
        if not Path(path).is_file() and not Path(path).is_dir():
            raise Refusal(f"{path} is a pipe or a device: pass - and redirect it to standard input")
    for path in dict.fromkeys(paths):
        if path == "-":
            name = arguments.stdin_name
            try:
                yield lint_text(decode(sys.stdin.buffer.read()), name, options.settings.rules(), fix=options.fix)
            except Unparsable as error:
                yield Linted(name, "", [unparsable(name, error)])
        else:
            yield from lint([path], options)


def _report(arguments: argparse.Namespace, options: Any) -> int:
    fixed: list[str] = []
    try:
        failed = _told(arguments, options, fixed)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OSError, Refusal) as error:
        what = str(error) if isinstance(error, Refusal) else f"cannot write {error.filename or 'the output'}: {error.strerror or error}"
        raise Refusal(what + (f"; these files were fixed before: {', '.join(fixed)}" if fixed else "")) from None
    return failed


def _told(arguments: argparse.Namespace, options: Any, fixed: list[str]) -> int:
    """`fixed` receives the name of each file that was written."""
    findings: list[Any] = []
    seen: set[str] = set()
    files = mended = 0
    failed, readable = False, True
    for linted in _linted(arguments, options):
        if linted.path in seen:
            continue
        readable = readable and linted.readable
        seen.add(linted.path)
        files += 1
        mended += linted.mended
        failed = failed or any(options.settings.fails(f) for f in linted.findings) or (arguments.diff and linted.mended > 0)
        findings += linted.findings
        if arguments.diff:
            _print_diff(linted)
            continue
        if linted.fixed is not None and arguments.fix:
            if linted.path == arguments.stdin_name and "-" in arguments.paths:
                sys.stdout.write(linted.fixed)
            else:
                _replace(linted.path, linted.original, linted.fixed)
                fixed.append(linted.path)
        elif arguments.fix and "-" in arguments.paths and linted.path == arguments.stdin_name:
            sys.stdout.write(linted.text)
        if arguments.format == "text":
            for block in text.render(linted):
                _say(block, arguments)
    if arguments.diff:
        pass
    elif arguments.format == "text":
        _say(_summary(findings, files, mended), arguments)
    elif arguments.format == "json":
        write(json.render(findings), "json")
    elif arguments.format == "sarif":
        write(sarif.render(findings, version()), "json")
    elif findings:
        write(github.render(findings))
    if any(map(is_fault, findings)):
        return BUG
    return int(failed) if readable else 2


def _say(line: str, arguments: argparse.Namespace) -> None:
    """Text goes to standard error where standard output carries mended source."""
    if arguments.fix and "-" in arguments.paths:
        print(line, file=sys.stderr)
    else:
        write(line)


def _summary(findings: list[Any], files: int, mended: int) -> str:
    done = f"{mended} mended, " if mended else ""
    fixable = sum(bool(f.edits) for f in findings)
    where = f"{files} file{'' if files == 1 else 's'}"
    if not findings:
        return f"{done}no findings in {where}"
    hint = f", {fixable} of them fixable with --fix" if fixable else ""
    return f"{done}{len(findings)} finding{'' if len(findings) == 1 else 's'} in {where}{hint}"


def _print_diff(linted: Any) -> None:
    import difflib

    if linted.fixed is not None:
        before, after = linted.original.splitlines(keepends=True), linted.fixed.splitlines(keepends=True)
        lines = difflib.unified_diff(before, after, linted.path, linted.path)
        write("".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines).rstrip("\n"))


def _replace(name: str, before: str, after: str) -> None:
    """Encoding, mode and links of the file stay."""
    from kullback_files import replace  # here, because most runs write no file, and it loads `secrets`

    path = Path(name).resolve()
    try:
        data = path.read_bytes()
        try:
            changed = decode(data) != before
        except Unparsable:
            changed = True
        if changed:
            raise Refusal(f"{name} changed while it was read; nothing was written to it")
        replace(path, after.encode(encoding_of(data)), stat.S_IMODE(path.stat().st_mode))
    except OSError as error:
        error.filename = name  # not that of the temporary file
        raise
