"""Comparing tables: our time and memory beside evidently's, on the same Parquet files, in the same run.

Usage: python benchmarks/tables.py --evidently PYTHON [--large]. PYTHON is that of an environment with evidently, pyarrow and pandas 2 (it
breaks with pandas 3). --large adds 100 million rows, ours alone. Each figure is one process, imports and reading included.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb

HERE = Path(__file__).resolve().parent
RESULTS, DOCS = HERE / "results" / "tables.csv", HERE.parent / "docs" / "compare-tables.md"
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"

OURS = """
import sys
from kullback._compare.tables import compare_tables
found = compare_tables(sys.argv[1], sys.argv[2])
assert len(found.columns) == 10
print(found.columns[0].name)
"""

# The same job, as evidently's documentation does it: a table in pandas, PSI for every column.
THEIRS = """
import sys
import pandas as pd
from evidently import Report
from evidently.presets import DataDriftPreset
p, q = (pd.read_parquet(path) for path in sys.argv[1:3])
found = Report([DataDriftPreset(method="psi")]).run(q, p).dict()
assert len(found["metrics"]) > 9, len(found["metrics"])
print(len(found["metrics"]))
"""


def generate(path: Path, rows: int, shift: float, seed: float) -> None:
    """Ten columns of the kinds tables have: floats, whole numbers, few and many levels, a boolean, missing values."""
    normal = "sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
    columns = [
        f"{normal} + {shift} AS normal",
        f"exp({normal}) AS lognormal",
        "random() AS uniform",
        f"if(random() < 0.3, 0.0, {normal}) AS half_zero",
        f"if(random() < 0.05, NULL, {normal}) AS some_missing",
        "(random() * 100)::INTEGER AS small_integer",
        "(random() * 1e12)::BIGINT AS large_integer",
        "'level ' || floor(20 * random() * random())::INTEGER AS few_levels",
        "'id ' || floor(10000 * random())::INTEGER AS many_levels",
        f"random() < {0.5 + shift} AS boolean",
    ]
    with duckdb.connect(config={"memory_limit": "4GB"}) as connection:
        connection.execute("SET preserve_insertion_order = false; ")
        connection.execute("SELECT setseed(?)", [seed])
        connection.execute(f"COPY (SELECT {', '.join(columns)} FROM range({rows})) TO '{path}' (FORMAT parquet)")


def measured(command: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Seconds, seconds of CPU (which other load on the machine hardly changes) and peak GiB of a process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{command[0]} failed with status {status}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def run(rows: int, evidently: str | None, rounds: int) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("p.parquet", "q.parquet")]
        for file, shift, seed in zip(files, (0.0, 0.02), (0.25, 0.75)):
            generate(file, rows, shift, seed)
        size = sum(file.stat().st_size for file in files) / 2**30
        ours = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}
        candidates = [("kullback", [sys.executable, "-c", OURS], ours)]
        if evidently:
            plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            candidates.append(("evidently", [evidently, "-c", THEIRS], plain))
        for what, command, environment in candidates:
            # The files were just written, and are in the page cache for both.
            seconds, cpu, memory = min(measured([*command, *map(str, files)], environment) for _ in range(rounds))
            numbers = {"GiB of Parquet": size, "seconds": seconds, "CPU seconds": cpu, "peak GiB": memory}
            found.append({"what": what, "rows a side": rows, "columns": 10, **numbers})
            print(found[-1], flush=True)
    return found


def table(found: list[dict[str, Any]], theirs: str) -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    )
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("duckdb", "pyarrow", "numpy"))
    lines = [f"{names[0] if names else platform.processor()}, {cores} cores; Python {platform.python_version()}, {versions}; {theirs}.", ""]
    lines += ["| rows a side × 10 columns | what | seconds | CPU seconds | peak memory |", "|---|---|---|---|---|"]
    for row in found:
        bold = "**" if row["what"] == "kullback" else ""
        times = f"{row['seconds']:.1f} | {row['CPU seconds']:.1f}"
        lines.append(f"| {row['rows a side']:,} | {bold}{row['what']}{bold} | {times} | {row['peak GiB']:.2f} GiB |")
    for rows in sorted({row["rows a side"] for row in found}):
        pair = {row["what"]: row for row in found if row["rows a side"] == rows}
        if len(pair) == 2:
            wall, cpu = (pair["evidently"][key] / pair["kullback"][key] for key in ("seconds", "CPU seconds"))
            lines += [
                "",
                f"At {rows:,} rows a side evidently takes {wall:.1f} times as long as kullback, and {cpu:.1f} times the CPU time.",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--evidently", metavar="PYTHON", required=True, help="the Python of an environment with evidently and pyarrow")
    parser.add_argument("--large", action="store_true", help="100 million rows too, ours alone")
    parser.add_argument("--quick", action="store_true", help="small, once; writes nothing")
    options = parser.parse_args()
    version = "import importlib.metadata as m; print(*(f'{n} {m.version(n)}' for n in ('evidently', 'pandas')), sep=' on ')"
    theirs = subprocess.run([options.evidently, "-c", version], capture_output=True, text=True, check=True).stdout.strip()
    if options.quick:
        print(table(run(100_000, options.evidently, 1), theirs))
        return
    found = run(1_000_000, options.evidently, 1)
    if options.large:
        found += run(100_000_000, None, 1)
    text = table(found, theirs)
    print(text)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]))
        writer.writeheader()
        writer.writerows(found)
    page = DOCS.read_text()
    before, _, rest = page.partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
