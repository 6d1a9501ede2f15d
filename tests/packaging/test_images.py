"""What the images are made of, and that the operator's has nothing heavy in it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import container_images
from container_images import IMAGES, NoEngine
from end_to_end import base_image
from kvferry_operator.desired.security import USER
from kvferry_operator.desired.settings import Images

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted({image.dockerfile for image in IMAGES.values()})
HEAVY = ("torch", "ucxx", "numpy", "numba", "transformers", "pip", "uv", "hatchling")


def stages(dockerfile: str) -> dict[str, list[str]]:
    """Target → its instructions, with those of the targets that it starts from."""
    text = (ROOT / dockerfile).read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        start = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if start:
            current = found[start[2]] = list(found.get(start[1], ()))
        elif found and line and not line.startswith("#"):
            current.append(line)
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_runs_as_a_numeric_user_without_root(name: str) -> None:
    instructions = stages(IMAGES[name].dockerfile)[IMAGES[name].target]
    users = [line for line in instructions if line.startswith("USER ")]
    assert users == [f"USER {USER}:{USER}"]
    assert instructions.index(users[0]) > max(i for i, line in enumerate(instructions) if line.startswith("RUN "))


@pytest.mark.parametrize("name", IMAGES)
def test_only_the_operator_has_an_entry_point(name: str) -> None:
    """Pods of a model name their command."""
    instructions = stages(IMAGES[name].dockerfile)[IMAGES[name].target]
    entries = [line for line in instructions if line.startswith(("ENTRYPOINT", "CMD"))]
    assert entries == (['ENTRYPOINT ["kvferry-operator"]'] if name == "operator" else [])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_what_is_copied_reaches_the_builder(dockerfile: str) -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for instructions in stages(dockerfile).values():
        for line in instructions:
            if line.startswith("COPY ") and "--from" not in line:
                sources = [word for word in line.split()[1:-1] if word != "."]
                assert set(sources) <= sent, line
    assert all((ROOT / path).exists() for path in sent)


def test_images_are_tagged_as_the_operator_asks_for_them() -> None:
    images = Images.of_release(container_images.version())
    assert container_images.tag("engine") == images.engine
    assert container_images.tag("runtime") == images.runtime


@pytest.mark.parametrize("engine", container_images.ENGINES)
def test_certificates_and_indexes_are_secrets_and_reach_no_layer(engine: str) -> None:
    environment = {"SSL_CERT_FILE": "/host/ca.pem", "UV_CONFIG_FILE": "/host/uv.toml", "PIP_CONFIG_FILE": ""}
    command = container_images.build_command(engine, IMAGES["operator"], "name:1", environment=environment)
    hosts = [word for word in command if "/host/" in word]
    assert hosts == ["--secret=id=ca,src=/host/ca.pem", "--secret=id=uv,src=/host/uv.toml"]


def test_without_a_container_engine_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoEngine, match="apt-get install buildah"):
        container_images.find_engine()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_operators_image_holds_the_operator_and_nothing_heavy() -> None:
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("buildah", "debootstrap")):
        pytest.skip("needs root, buildah and debootstrap: apt-get install buildah debootstrap")
    list(container_images.build("buildah", ["operator"], base_image.ensure()))
    container = output("buildah", "from", container_images.tag("operator")).strip()
    try:
        root = Path(output("buildah", "mount", container).strip())
        (packages,) = root.glob("opt/venv/lib/python3*/site-packages")
        names = {path.name for path in packages.iterdir()}
        assert {"kvferry_operator", "kopf", "kubernetes"} <= names
        assert not names.intersection(HEAVY)
        help_text = output("buildah", "run", "--isolation=chroot", container, "--", "kvferry-operator", "--help")
        assert "--leader-elect" in help_text
    finally:
        output("buildah", "rm", container)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
