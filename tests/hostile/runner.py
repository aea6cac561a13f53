"""Runs a case within limits of time and memory, searches for the smallest failing case, and stores it."""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import array_cases
from outcome import FAILURE, Outcome, TookTooLong, failure

Case = dict[str, Any]

# Seconds that a case of a few numbers or kilobytes may take, the import of a framework included.
SECONDS = 40


def modules() -> dict[str, Any]:
    import file_cases
    import loss_cases
    import odd_cases
    import table_cases

    return {"arrays": array_cases, "files": file_cases, "losses": loss_cases, "odd": odd_cases, "tables": table_cases}


# kind of stint -> (module of cases, argument of its generate)
KINDS: dict[str, tuple[str, str]] = {
    "arrays, NumPy": ("arrays", "numpy"),
    "arrays, PyTorch": ("arrays", "torch"),
    "arrays, JAX": ("arrays", "jax"),
    "arrays, TensorFlow": ("arrays", "tensorflow"),
    "arrays, tinygrad": ("arrays", "tinygrad"),
    "losses, NumPy": ("losses", "numpy"),
    "losses, PyTorch": ("losses", "torch"),
    "odd arguments": ("odd", ""),
    "files": ("files", ""),
    "tables": ("tables", ""),
}


def generate(kind: str, seed: int) -> Case:
    module, argument = KINDS[kind]
    return {"kind_of_case": kind, "seed": seed, **modules()[module].generate(seed, argument)}


def seeds(start: int) -> Iterator[int]:
    rng = random.Random(start)
    while True:
        yield rng.getrandbits(48)


def _alarm(*_: Any) -> None:
    raise TookTooLong


def run(case: Case, seconds: float = SECONDS) -> Outcome:
    """Judges a case. A call that does not come back within the time is a failure."""
    module = modules()[KINDS[case["kind_of_case"]][0]]
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    # Compiled code that hangs sees no signal. The process then ends, and its parent has the case.
    faulthandler.dump_traceback_later(4 * seconds, exit=True, file=sys.__stderr__)
    try:
        found = module.run(case)
    except TookTooLong:
        return failure(f"not finished after {seconds:g} seconds")
    except MemoryError:
        return failure("out of memory")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
        faulthandler.cancel_dump_traceback_later()
    return found


def limit_memory(more: int = 6 << 30) -> None:
    """A bomb is to end in a MemoryError, not with the machine."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.getrlimit(resource.RLIMIT_AS)[1]))


def gist(why: str) -> str:
    """The words of a failure without its numbers. Failures of one sort share these."""
    import re

    return re.sub(r"[-+]?[\d.]+(e[-+]?\d+)?|\b(inf|nan)\b", "#", why, flags=re.IGNORECASE)[:80]


def smallest(case: Case, found: Outcome, seconds: float = 20.0) -> tuple[Case, Outcome]:
    """Simplify a case as long as it fails in the same way and time is left."""
    module = modules()[KINDS[case["kind_of_case"]][0]]
    end, wanted = time.monotonic() + seconds, gist(found.why)[:40]
    again = True
    while again and time.monotonic() < end:
        again = False
        for simpler in module.smaller(case):
            if time.monotonic() > end:
                break
            try:
                outcome = run(simpler)
            except Exception:  # the case makes no sense
                continue
            if outcome.failed and gist(outcome.why)[:40] == wanted:
                case, found, again = simpler, outcome, True
                break
    return case, found


def store(folder: Path, case: Case, found: Outcome, replay: str) -> Path:
    """Write a failure to a file of its own, with the line that runs it again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{case['kind_of_case'].replace(', ', '-').replace(' ', '-').lower()}-{case['seed']}.json"
    module = modules()[KINDS[case["kind_of_case"]][0]]
    try:
        shown = module.command(case)
    except Exception as error:
        shown = f"(cannot be shown: {error})"
    about = {"why": found.why, "call": shown, "replay": f"{replay} {path}", "case": case}
    path.write_text(json.dumps(about, indent=1))
    return path


def try_cases(
    kind: str, start: int, until: Callable[[], bool], note: Callable[[Case], None] = lambda case: None
) -> Iterator[tuple[Case, Outcome]]:
    for seed in seeds(start):
        if until():
            return
        case = generate(kind, seed)
        note(case)
        yield case, run(case)


__all__ = ["FAILURE", "KINDS", "generate", "gist", "limit_memory", "run", "seeds", "smallest", "store", "try_cases"]
