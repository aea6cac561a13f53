"""Monte Carlo streams: how much time of a core n samples take, and how much memory, from 1e5 to 1e9.

    python benchmarks/monte_carlo.py [--most 1000000000]

Each n in a process of its own, whose memory is the largest it ever held, less what it held after a first run of a thousand samples. Writes
benchmarks/results/monte_carlo.csv and the table between the `monte_carlo` markers of docs/numerics.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXACT = 0.36314355131420983  # log 1.25 + 2/3.125 − 1/2

_RUN = """
import json, resource, sys, time
from kullback.distributions import Normal
from kullback.estimators import monte_carlo
p, q = Normal(0.0, 1.0), Normal(1.0, 1.25)
monte_carlo(p, q, n=1000, rng=0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
found = monte_carlo(p, q, n=int(sys.argv[1]), rng=1)
seconds = time.process_time() - start
peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(json.dumps({"n": found.n, "seconds": seconds, "extra_mb": peak, "value": found.value, "stderr": found.stderr}))
"""


def main(most: int) -> None:
    rows = []
    for n in (n for n in (10**5, 10**6, 10**7, 10**8, 10**9) if n <= most):
        done = subprocess.run([sys.executable, "-c", _RUN, str(n)], capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], flush=True)
    for row in rows:
        row["seconds"], row["extra_mb"] = float(f"{row['seconds']:.3g}"), round(row["extra_mb"], 1)
    with (ROOT / "benchmarks" / "results" / "monte_carlo.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    lines = [
        f"| N(0, 1)‖N(1, 1.25²), KL {EXACT:.9f} | value ± standard error | CPU seconds | memory beyond a first run |",
        "|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| n = 1e{len(str(r['n'])) - 1} | {r['value']:.7f} ± {r['stderr']:.1e} | {r['seconds']:.2g} | {r['extra_mb']:.0f} MB |"
        )
    page = ROOT / "docs" / "numerics.md"
    marked = r"(<!-- monte_carlo:begin -->\n).*?(<!-- monte_carlo:end -->)"
    page.write_text(re.sub(marked, lambda m: m[1] + "\n".join(lines) + "\n" + m[2], page.read_text(), flags=re.S))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10**9)
    main(parser.parse_args().most)
