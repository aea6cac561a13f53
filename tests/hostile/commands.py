"""Runs the command, in this process or in one of its own, and judges its exit code and its error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outcome import ERROR, REFUSED, Outcome, failure, last_of_ours, sentence_fault

# A command on a few kilobytes may use so much memory more than the process had before. It imports libraries, too.
BYTES = 400 << 20


class Done(NamedTuple):
    code: int
    out: str
    err: str


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary one, which is the current one."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="hostile-") as made:
        os.chdir(made)
        try:
            yield Path(made)
        finally:
            os.chdir(before)


def here(arguments: Sequence[str]) -> Done | Outcome:
    """`kullback ARGUMENTS` in this process; an exception is a failure, since a user would see a traceback."""
    from kullback_command import main

    out, err, before = io.StringIO(), io.StringIO(), memory()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(arguments))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 2
        except MemoryError:
            return failure("MemoryError, a traceback")
        except Exception as error:
            return failure(f"a traceback: {type(error).__name__}: {str(error)[:200]} (below {last_of_ours(error)})")
    taken = memory(peak=True) - before
    if taken > BYTES:
        return failure(f"took {taken >> 20} MiB of memory")
    return Done(code, out.getvalue(), err.getvalue())


def memory(peak: bool = False) -> int:
    """Bytes that this process has in memory, or had at most since it was last asked."""
    if not peak:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def apart(arguments: Sequence[str], seconds: float = 60.0) -> Done | Outcome:
    """The same in a process of its own."""
    try:
        done = subprocess.run([sys.executable, "-m", "kullback", *arguments], capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return failure(f"not finished after {seconds:g} seconds")
    if done.returncode < 0:
        return failure(f"ended by signal {-done.returncode}")
    return Done(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def refusal(done: Done, names: Sequence[str]) -> Outcome:
    """Judge a refusal: one sentence on standard error, with the name of one of the files."""
    if done.code != 2:
        return failure(f"exit code {done.code}: {done.err[:100]!r} ... {done.err[-300:]!r}")
    lines = done.err.splitlines()
    if len(lines) != 1 or not lines[0].startswith("kullback "):
        return failure(f"standard error is not one sentence: {done.err[:300]!r}")
    sentence = lines[0].partition(": ")[2]
    wrong = sentence_fault(sentence)
    if wrong is not None:
        return failure(wrong)
    if "cannot write the output" in sentence:
        return failure(f"an error of reading is told as one of writing: {sentence!r}")
    if done.out.strip():
        return failure(f"refused, and yet it printed {done.out[:100]!r}")
    if not any(name in sentence for name in names):
        if sentence.startswith(("column ", "the two sides ")) and re.search(r"\b[PQ]\b|two sides", sentence):
            return Outcome(ERROR, sentence[:200])  # whole tables that do not go together: the sides and the column are what to know
        return failure(f"refused without a file's name: {sentence!r}")
    return Outcome(REFUSED, sentence[:200])


def printed(done: Done) -> dict[str, Any] | Outcome:
    """The JSON of a command that exited with 0."""
    try:
        found = json.loads(done.out, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except ValueError as error:
        return failure(f"the output is not JSON ({error}): {done.out[:200]!r}")
    return found if isinstance(found, dict) else failure(f"the output is no object: {done.out[:200]!r}")


def number(x: Any) -> float:
    """Numbers that are not finite are texts in JSON."""
    return float(x)


def shown(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:200]
