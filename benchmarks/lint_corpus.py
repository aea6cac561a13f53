"""`kullback lint` over code its authors did not write: packages from PyPI, each finding with a verdict by a human reader.

    python benchmarks/lint_corpus.py fetch          # downloads and unpacks what results/lint_packages.csv names (checksums held)
    python benchmarks/lint_corpus.py check          # lints them, compares with results/lint_verdicts.csv, rewrites docs/lint-corpus.md
    python benchmarks/lint_corpus.py resolve NAME.. # adds the newest version of packages to the list

Only text is unpacked (.py, .ipynb); nothing of the packages is imported or run.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
import sys
import tarfile
import urllib.request
import zipfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from importlib.metadata import files, version
from pathlib import Path, PurePosixPath

from kullback_lint import RULES, lint_text
from kullback_lint.check import WORTH, Unparsable
from kullback_lint.run import decode

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = RESULTS / "lint_packages.csv"
VERDICTS = RESULTS / "lint_verdicts.csv"
MISSED = RESULTS / "lint_missed.csv"  # defects seen by eye in the calls of a KL, which the linter does not see
READER = RESULTS / "lint_second_reader.csv"  # call sites and findings judged by somebody who did not write the rules
OUTSIDE = RESULTS / "lint_outside.csv"  # packages nobody had looked at when the rules were written
DOCS = ROOT / "docs" / "lint-corpus.md"
# Installed for the tests: read where they are.
ENVIRONMENT = (
    "torch", "keras", "tf-keras", "tfp-nightly", "optax", "numpyro", "distrax", "scipy", "jax", "tensorflow-cpu", "torchmetrics", "pandas",
)  # fmt: skip
# Rules about more than the calls of a KL are left out of the count of misses: nobody read all softmaxes.
NOT_COUNTED = {"KL008", "KL009", "KL010", "KL019", "KL024", "KL025"}
Found = tuple[str, str, str, int, str]
LARGEST = 90_000_000  # bytes of a download
TEXT = (".py", ".ipynb")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read()


def _resolve(name: str) -> dict[str, str] | None:
    """The newest sdist (it has the examples and tests too), or else the smallest wheel."""
    try:
        found = json.loads(_get(f"https://pypi.org/pypi/{name}/json"))
    except OSError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    files = [f for f in found["urls"] if f["size"] <= LARGEST and f["filename"].endswith((".tar.gz", ".whl", ".zip"))]
    files.sort(key=lambda f: (f["packagetype"] != "sdist", f["size"]))
    if not files:
        print(f"{name}: nothing under {LARGEST} bytes", file=sys.stderr)
        return None
    url = "https://files.pythonhosted.org/packages/" + files[0]["url"].split("packages/")[-1]  # mirrors answer with relative addresses
    return {"package": name, "version": found["info"]["version"], "sha256": files[0]["digests"]["sha256"], "url": url}


def _unpack(package: dict[str, str], where: Path) -> str:
    target = where / f"{package['package']}-{package['version']}"
    if target.exists():
        return ""
    data = _get(package["url"])
    if hashlib.sha256(data).hexdigest() != package["sha256"]:
        return f"{package['package']}: the download is not the file that was listed"
    if package["url"].endswith((".whl", ".zip")):
        archive = zipfile.ZipFile(io.BytesIO(data))
        members = [(n, lambda n=n: archive.read(n)) for n in archive.namelist()]
    else:
        tar = tarfile.open(fileobj=io.BytesIO(data))  # noqa: SIM115
        members = [(m.name, lambda m=m: tar.extractfile(m).read()) for m in tar.getmembers() if m.isfile()]
    target.mkdir(parents=True)
    for name, read in members:
        parts = PurePosixPath(name)
        if parts.suffix in TEXT and not parts.is_absolute() and ".." not in parts.parts:
            path = target / Path(*parts.parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read())
    return ""


def _packages() -> list[dict[str, str]]:
    if not PACKAGES.exists():
        return []
    with PACKAGES.open(newline="") as file:
        return list(csv.DictReader(file))


def resolve(names: list[str]) -> None:
    known = {p["package"]: p for p in _packages()}
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(_resolve, [n for n in names if n not in known]):
            if found:
                known[found["package"]] = found
    with PACKAGES.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["package", "version", "sha256", "url"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(known[name] for name in sorted(known))


def fetch(where: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for message in pool.map(lambda p: _guarded(p, where), _packages()):
            if message:
                print(message, file=sys.stderr)


def _guarded(package: dict[str, str], where: Path) -> str:
    try:
        return _unpack(package, where)
    except Exception as error:  # one package must not stop the others
        return f"{package['package']}: {type(error).__name__}: {error}"


def lint(where: Path) -> tuple[list[Found], int, int]:
    """Every finding, and how many files and lines were read."""
    roots = {(p["package"], p["version"]): [where / f"{p['package']}-{p['version']}"] for p in _packages()}
    missing = [name for (name, _), (root,) in roots.items() if not root.exists()]
    if missing:
        raise SystemExit(f"not fetched yet: {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}")
    for name in ENVIRONMENT:
        roots[name, version(name)] = [Path(module.locate()) for module in files(name) or [] if module.suffix == ".py"]
    jobs = [(name, number, path) for (name, number), paths in roots.items() for path in paths]
    found: list[Found] = []
    read = lines = 0
    with ProcessPoolExecutor() as pool:
        for some, count, length in pool.map(_lint_one, jobs, chunksize=20):
            found += some
            read += count
            lines += length
    return sorted(found), read, lines


def _lint_one(job: tuple[str, str, Path]) -> tuple[list[Found], int, int]:
    name, number, root = job
    found: list[Found] = []
    count = length = 0
    # Nothing is skipped here, not even folders named build.
    for path in sorted(p for p in root.rglob("*") if p.suffix in TEXT) if root.is_dir() else [root]:
        try:
            text = decode(path.read_bytes())
        except (OSError, Unparsable):
            continue
        count += 1
        length += text.count("\n")
        if not WORTH.search(text):
            continue  # the linter would parse it and stop
        shown = (
            "/".join(path.relative_to(root).parts[-6:]) if root.is_dir() else "/".join(path.parts[path.parts.index("site-packages") + 1 :])
        )
        for f in lint_text(text, str(path), tuple(RULES)).findings:
            if f.rule != "KL000":
                found.append((name, number, shown + (f" cell {f.cell}" if f.cell else ""), f.line, f.rule))
    return found, count, length


def check(where: Path, *, rewrite: bool) -> None:
    found, read, lines = lint(where)
    with VERDICTS.open(newline="") as file:
        verdicts = {
            (r["package"], r["version"], r["file"], int(r["line"]), r["rule"]): (r["verdict"], r["why"]) for r in csv.DictReader(file)
        }
    new, gone = [f for f in found if f not in verdicts], sorted(set(verdicts) - set(found))
    for finding in new:
        print("not judged yet:", *finding)
    for finding in gone:
        print("found no more:", *finding)
    if rewrite:
        _write(found, verdicts, read, lines)
    if new or gone:
        raise SystemExit(1)


def _write(found: list[Found], verdicts: dict[Found, tuple[str, str]], read: int, lines: int) -> None:
    judged = [(f, *verdicts.get(f, ("not judged", ""))) for f in found]
    count = Counter(verdict for _, verdict, _ in judged)
    right = count["right"] + count["minor"]
    text = DOCS.read_text()
    rows = "\n".join(f"| {n} {v} | {file}:{line} | {rule} | {verdict} | {why} |" for (n, v, file, line, rule), verdict, why in judged)
    with MISSED.open(newline="") as file:
        missed = list(csv.DictReader(file))
    seen = sum(rule not in NOT_COUNTED and verdict == "right" for (_, _, _, _, rule), verdict, _ in judged)
    misses = "\n".join(f"| {m['package']} {m['version']} | {m['file']}:{m['line']} | {m['rule']} | missed | {m['why']} |" for m in missed)
    rows = f"{rows}\n{misses}"
    summary = (
        f"{len(_packages())} packages from PyPI and {len(ENVIRONMENT)} of the test environment, {read:,} files, {lines:,} lines: "
        f"{len(judged)} findings, {count['right']} right, {count['minor']} minor, {count['wrong']} wrong. "
        f"{100 * right / max(len(judged), 1):.1f}% are true of the code they point at. "
        f"Of the {seen + len(missed)} defects in calls of a KL, {seen} are found."
    )
    head = "| package | where | rule | verdict | why |\n|---|---|---|---|---|"
    table = f"<!-- corpus:begin -->\n{summary}\n\n{head}\n{rows}\n<!-- corpus:end -->"
    text = re.sub(r"<!-- corpus:begin -->.*<!-- corpus:end -->", lambda _: table, text, flags=re.DOTALL)
    reader = f"<!-- reader:begin -->\n{_second_reader()}\n<!-- reader:end -->"
    DOCS.write_text(re.sub(r"<!-- reader:begin -->.*<!-- reader:end -->", lambda _: reader, text, flags=re.DOTALL))


def _second_reader() -> str:
    with READER.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with OUTSIDE.open(newline="") as file:
        packages = Counter(row["set"] for row in csv.DictReader(file))
    parts = []
    for name, where in (
        ("sample", "among the call sites drawn from the corpus"),
        ("outside", f"in {packages['outside']} packages outside it"),
    ):
        defects = [r for r in rows if r["set"] == name and r["verdict"] == "defect"]
        then, now = (sum(r[when] == "found" for r in defects) for when in ("then", "now"))
        parts.append(f"* {len(defects)} defects {where}: {then} found then, {now} now.")
    for name, when in (("outside", "before the mending"), ("afterwards", "after it")):
        findings = [r for r in rows if r["set"] == name and r["then"] == "found"]
        wrong = sum(r["verdict"] == "wrong" for r in findings)
        parts.append(
            f"* {len(findings)} findings in {packages[name]} packages outside the corpus, {when}: {wrong} wrong "
            f"({100 * wrong / len(findings):.0f}%), {sum(r['verdict'] == 'minor' for r in findings)} minor."
        )
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["resolve", "fetch", "check"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "corpus")
    arguments = parser.parse_args()
    if arguments.action == "resolve":
        resolve(arguments.names)
    elif arguments.action == "fetch":
        fetch(arguments.corpus)
    else:
        check(arguments.corpus, rewrite=True)


if __name__ == "__main__":
    main()
