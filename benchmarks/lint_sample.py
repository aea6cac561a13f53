"""Call sites of a KL in the corpus, drawn by chance for a second reader.

    python benchmarks/lint_sample.py --corpus build/corpus     # package, file, line and the line itself, in the order they were drawn

The reader notes the defects whose evidence stands in the file before looking at what the linter says (results/lint_second_reader.csv).
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

SEED = 20260
WORDS = re.compile(r"kl_div|KLDivLoss|KLDivergence|rel_entr|entropy\(|jensenshannon|kullback|log_?var|log_?sigma")
# What is searched for, and how many of it are drawn.
KINDS = {
    "kl_div": (r"\bkl_div\(", 45),
    "KLDivLoss": (r"\bKLDivLoss\(", 30),
    "KLDivergence": (r"\bKLDivergence\(|\bkl_divergence\(|\bkullback_leibler\w*\(|\bKLD\(", 14),
    "rel_entr": (r"\brel_entr\(", 8),
    "entropy of two": (r"\bentropy\(\s*[\w\.\[\]]+\s*,\s*[\w\.\[\]]+(?!\s*=)[\s,\)]", 10),
    "jensenshannon": (r"\bjensenshannon\(|jensen_shannon\w*\(", 10),
    "written out": (
        r"(\w+)\s*\*\s*(?:np|torch|jnp|tf|tf\.math|math|numpy|K|ops)\.log2?\(\s*\(?\1\b[^)]*/"
        r"|(\w+)\s*\*\s*\(\s*(?:np|torch|jnp|tf|tf\.math|math)\.log2?\(\2\b[^)]*\)\s*-|\.exp\(\)\s*\*\s*\(\s*\w*log\w*\s*-\s*\w+\)",
        18,
    ),
    "Gaussian": (r"1\.?0?\s*\+\s*[\w\.]*(?:log_?var|logsigma|log_?sigma|logv|log_variance|log_std|logvar)\w*", 20),
}
NO_CALL = ("def ", "class ", "#", "import", "from", ">>>", '"""')
PER_PACKAGE = 2  # of one kind, and one of a file

Site = tuple[str, str, int, str]


def sites(corpus: Path) -> dict[str, list[Site]]:
    found: dict[str, list[Site]] = defaultdict(list)
    for path in sorted(corpus.rglob("*.py"), key=lambda p: f"./{p.relative_to(corpus).as_posix()}"):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if not WORDS.search(text):
            continue
        lines, name = text.splitlines(), path.relative_to(corpus).as_posix()
        for kind, (pattern, _) in KINDS.items():
            for match in re.finditer(pattern, text):
                number = text.count("\n", 0, match.start()) + 1
                line = lines[number - 1].strip()
                if not line.startswith(NO_CALL):
                    found[kind].append((name.split("/")[0], name, number, line))
    return found


def draw(found: dict[str, list[Site]]) -> list[tuple[str, Site]]:
    chance = random.Random(SEED)
    drawn: list[tuple[str, Site]] = []
    for kind, (_, wanted) in KINDS.items():
        listed = found[kind][:]
        chance.shuffle(listed)
        packages: Counter[str] = Counter()
        files: set[str] = set()
        for site in listed:
            if sum(packages.values()) < wanted and packages[site[0]] < PER_PACKAGE and site[1] not in files:
                packages[site[0]] += 1
                files.add(site[1])
                drawn.append((kind, site))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=Path(__file__).resolve().parents[1] / "build" / "corpus")
    for kind, (_, name, number, line) in draw(sites(parser.parse_args().corpus)):
        print(f"{name}:{number}: [{kind}] {line[:100]}")


if __name__ == "__main__":
    main()
