"""The traps of a source root called `operator`: one stray file kills the interpreter."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["operator", "runtime"])
def test_a_source_root_is_no_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists(), f"{folder}/__init__.py would shadow the standard library"


def test_no_test_folder_is_a_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_the_interpreter_starts_in_the_root() -> None:
    code = "import operator, collections; assert operator.eq(1, 1)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=300)


def test_each_package_is_typed_and_shipped() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    for package in packages:
        assert (ROOT / package / "py.typed").exists(), package
        assert (ROOT / package / "__init__.py").exists(), package


def test_no_folder_of_code_without_a_purpose() -> None:
    for init in [*ROOT.glob("operator/**/__init__.py"), *ROOT.glob("runtime/**/__init__.py")]:
        assert '"""' in init.read_text(), f"{init.relative_to(ROOT)} does not say what its folder is for"
