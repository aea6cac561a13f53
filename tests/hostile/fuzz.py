"""Searches for inputs that are answered wrongly, for as long as asked, with one process a core.

    make fuzz MINUTES=60
    python tests/hostile/fuzz.py --minutes 60 [--processes 2] [--kinds files,tables] [--seed 1]
    python tests/hostile/fuzz.py --replay build/fuzz/files-123.json

Each case is right, a documented error, refused, or a failure. Each failure is reduced to its smallest input and stored in build/fuzz,
which git ignores, with the line that replays it. The search counts all failures of a sort, and stores the first few.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "fuzz"
# How often each kind has its turn. Compiling frameworks get fewer: most of their time is not spent on cases.
TURNS = (
    "arrays, NumPy", "files", "arrays, PyTorch", "tables", "losses, PyTorch", "odd arguments", "files", "losses, NumPy",
    "arrays, NumPy", "tables", "arrays, PyTorch", "files", "arrays, JAX", "arrays, PyTorch", "arrays, TensorFlow", "arrays, NumPy",
    "odd arguments", "files", "tables", "arrays, tinygrad",
)  # fmt: skip
# How many failures of one sort are reduced and stored in one turn.
STORED = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kinds", help="separated by semicolons; all by default")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--replay", type=Path, nargs="+")
    parser.add_argument("--turn", nargs=3, metavar=("KIND", "SEED", "SECONDS"), help="what a process of the search is started with")
    given = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if given.replay:
        return replay(given.replay)
    if given.turn:
        kind, seed, seconds = given.turn
        return turn(kind, int(seed), float(seconds), given.folder)
    return search(given)


def replay(paths: list[Path]) -> int:
    import runner

    failed = 0
    for path in paths:
        stored = json.loads(path.read_text())
        case = stored.get("case", stored)
        found = runner.run(case)
        print(f"{found.status}: {found.why}\n  {runner.modules()[runner.KINDS[case['kind_of_case']][0]].command(case)}")
        failed += found.failed
    return int(failed > 0)


def turn(kind: str, seed: int, seconds: float, folder: Path) -> int:
    """One process runs cases of one kind until time is up. It prints each failure as a line of JSON, and the counts last."""
    import runner

    # If this process dies, its parent finds the current case in this file.
    current = folder / f"current-{os.getpid()}.json"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    counts: collections.Counter[str] = collections.Counter()
    sorts: collections.Counter[str] = collections.Counter()
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    runner.modules()
    runner.limit_memory()
    for case, found in runner.try_cases(
        kind, seed, lambda: time.monotonic() > end, lambda case: current.write_text(json.dumps(case)) and None
    ):
        counts[found.status] += 1
        if found.failed:
            sort = f"{case.get('function', '')} {runner.gist(found.why)}".strip()
            sorts[sort] += 1
            if sorts[sort] <= STORED:
                small, why = runner.smallest(case, found)
                path = runner.store(folder, small, why, f"{Path(sys.executable)} {Path(__file__)} --replay")
                print(json.dumps({"failure": sort, "why": why.why, "path": str(path)}), file=output)
    current.unlink(missing_ok=True)
    print(json.dumps({"counts": counts, "sorts": sorts}), file=output)
    return 0


class Search:
    def __init__(self, given: argparse.Namespace) -> None:
        self.folder: Path = given.folder
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.sorts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        self.stored: dict[tuple[str, str], str] = {}

    def take(self, kind: str, seed: int, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        said = [self.folder / f"turn-{process.pid}.{kind_of}" for kind_of in ("out", "err")]
        out, err = (path.read_text(errors="replace") for path in said)
        for path in said:
            path.unlink()
        finished = False
        for line in out.splitlines():
            found = json.loads(line)
            if "counts" in found:
                self.counts[kind].update(found["counts"])
                self.sorts[kind].update(found["sorts"])
                finished = True
            elif (kind, found["failure"]) not in self.stored:
                self.stored[kind, found["failure"]] = found["path"]
                print(f"FAILURE ({kind}) {found['why'][:300]}\n    {found['path']}", flush=True)
        if not finished:
            current = self.folder / f"current-{process.pid}.json"
            case = json.loads(current.read_text()) if current.exists() else {"kind_of_case": kind, "seed": seed}
            path = self.folder / f"died-{case['kind_of_case'].replace(', ', '-').replace(' ', '-').lower()}-{case['seed']}.json"
            path.write_text(json.dumps({"why": f"the process ended with {process.returncode}: {err[-1500:]}", "case": case}))
            current.unlink(missing_ok=True)
            self.counts[kind]["failure"] += 1
            self.sorts[kind][f"the process ended with {process.returncode}"] += 1
            print(f"FAILURE ({kind}) the process ended with {process.returncode}: {err[-300:]}\n    {path}", flush=True)

    def table(self) -> str:
        names = ("right", "documented error", "refused", "failure")
        lines = [f"{'':22}" + "".join(f"{name:>18}" for name in names)]
        for kind in sorted(self.counts):
            lines.append(f"{kind:22}" + "".join(f"{self.counts[kind][name]:18,}" for name in names))
        total = sum(self.counts.values(), collections.Counter())
        lines.append(f"{'all':22}" + "".join(f"{total[name]:18,}" for name in names))
        return "\n".join(lines)


def search(given: argparse.Namespace) -> int:
    import runner

    kinds = TURNS if given.kinds is None else tuple(kind.strip() for kind in given.kinds.split(";"))
    unknown = [kind for kind in kinds if kind not in runner.KINDS]
    if unknown:
        print(f"there is no kind {unknown[0]!r}: there are {'; '.join(runner.KINDS)}", file=sys.stderr)
        return 2
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}, {given.processes} processes, {given.minutes:g} minutes; failures go to {given.folder}", flush=True)
    given.folder.mkdir(parents=True, exist_ok=True)
    rng, end = random.Random(seed), time.monotonic() + 60 * given.minutes
    # A turn takes at most four minutes, so that no process grows old, and all kinds have a turn if time allows.
    seconds = min(240.0, max(10.0, 60 * given.minutes * given.processes / len(kinds)))
    state, running, done = Search(given), {}, 0
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")])),
    }  # fmt: skip
    try:
        while running or time.monotonic() < end:
            while len(running) < given.processes and time.monotonic() < end:
                kind, own = kinds[done % len(kinds)], rng.getrandbits(32)
                left = min(seconds, max(1.0, end - time.monotonic()))
                command = [sys.executable, "-W", "ignore", __file__, "--folder", str(given.folder), "--turn", kind, str(own), str(left)]
                # A pipe that nobody reads would block the process that writes to it, so the output goes to files.
                said = [open(given.folder / f"turn-{done}.{name}", "w") for name in ("out", "err")]  # noqa: SIM115 (handed over)
                process = subprocess.Popen(command, stdout=said[0], stderr=said[1], env=environment, start_new_session=True)
                for file, name in zip(said, ("out", "err")):
                    file.close()
                    os.replace(file.name, given.folder / f"turn-{process.pid}.{name}")
                running[process] = (kind, own)
                done += 1
            for process in [process for process in running if process.poll() is not None]:
                state.take(*running.pop(process), process)
            time.sleep(0.1)
    except KeyboardInterrupt:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
        print("stopped")
    print(f"\nseed {seed}\n{state.table()}")
    for kind, sorts in state.sorts.items():
        for sort, times in sorts.most_common():
            print(f"{times:6} {kind}: {sort}")
            if (kind, sort) in state.stored:
                print(f"         {state.stored[kind, sort]}")
    return int(any(counts["failure"] for counts in state.counts.values()))


if __name__ == "__main__":
    raise SystemExit(main())
