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
import sys
import tarfile
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = RESULTS / "lint_packages.csv"
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


if __name__ == "__main__":
    main()
