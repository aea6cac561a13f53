"""The wheel that is built from this tree: with the compiled kernel, and, where there is no compiler, without, but whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.compiler
@pytest.mark.parametrize("compiler", ["cc", "false"])
def test_the_wheel(tmp_path, compiler):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, tree)
    if compiler == "cc":
        # Optimised code is tested as installed. Here only its place in the wheel matters, and optimising takes ten seconds.
        compiler = tmp_path / "cc"
        compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
        compiler.chmod(0o755)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, tree]
    subprocess.run(build, check=True, env={**os.environ, "CC": str(compiler)}, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".c", ".h", ".so") and "egg-info" not in str(path)
    }
    assert wanted <= names
    rest = {name for name in names - wanted if ".dist-info/" not in name}
    assert len(rest) == (0 if compiler == "false" else 1)
    assert all(name.startswith("kullback/_kernels/_comparison.") for name in rest)


@pytest.mark.compiler
def test_the_source_distribution(tmp_path):
    """What a wheel is built from where there is none: all of src, the kernel's C too, and the tests."""
    if not (ROOT / ".git").exists():
        pytest.skip("unpacked from such a distribution: nothing tells what should be in it")
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, tmp_path / "tree"], check=True)
    code = "import setuptools.build_meta as build, sys; print(build.build_sdist(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, cwd=tmp_path / "tree", capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    tracked = subprocess.run(["git", "ls-files"], check=True, cwd=tmp_path / "tree", capture_output=True, text=True).stdout.splitlines()
    left_out = {name for name in tracked if name not in names}
    assert left_out <= {".ci/run", ".gitignore", ".pre-commit-config.yaml"}
