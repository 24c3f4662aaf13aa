"""What an installation holds: the SQL inside the package, and no package called `sql`.

Wheel and editable wheel are built by the project's own backend and unpacked, which is what installing them does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.watch import page
from tests.servers.cache import CHECKOUT
from tests.servers.package import build

NAMES = sorted(path.name for path in (CHECKOUT / "sql").glob("*.sql"))

LOOK = """
import importlib.util, json, site, sys
site.addsitedir(sys.argv[1])
import cdc_outbox
from cdc_outbox import ddl
spec = importlib.util.find_spec("sql")
print(json.dumps({
    "package": cdc_outbox.__file__,
    "directory": str(ddl.directory()),
    "names": sorted(path.name for path in ddl.directory().glob("*.sql")),
    "outbox": ddl.read("outbox"),
    "sql": spec is not None and spec.origin,
}))
"""


def look(site: Path) -> dict[str, Any]:
    """What a Python outside the checkout finds with that directory, and no other, as its site-packages."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LOOK, site], cwd=site, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_carries_the_sql_inside_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    packages = {name.partition("/")[0] for name in names if not re.match(r"[^/]+\.(dist-info|data)/", name)}
    assert packages == {"cdc_outbox"}
    assert sorted(name.removeprefix("cdc_outbox/sql/") for name in names if name.endswith(".sql")) == NAMES
    assert "cdc_outbox/py.typed" in names


def test_the_wheel_is_the_same_whenever_and_from_whatever_the_image_is_built(
    wheel: Path, tmp_path: Path
) -> None:
    """The files that the Dockerfile's first stage has are enough, and their times and rights make no difference."""
    first = (CHECKOUT / "docker" / "Dockerfile").read_text().partition("RUN")[0]
    sources = [name for line in re.findall(r"^COPY (.*) \S+$", first, re.MULTILINE) for name in line.split()]
    assert {"pyproject.toml", "cdc_outbox", "sql"} < set(sources)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in sources:
        if (CHECKOUT / name).is_dir():
            leave = shutil.ignore_patterns("__pycache__")
            shutil.copytree(CHECKOUT / name, copy / name, copy_function=shutil.copyfile, ignore=leave)
        else:
            shutil.copyfile(CHECKOUT / name, copy / name)
    assert build("wheel", tmp_path, copy).read_bytes() == wheel.read_bytes()


def test_the_wheel_carries_the_status_page(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        carried = {
            name.removeprefix("cdc_outbox/watch/page/") for name in archive.namelist() if "/page/" in name
        }
    assert carried == {"__init__.py", "icon.svg", "index.html", "page.js", "style.css"}
    assert {file.content for file in page.served().values()} == {
        (CHECKOUT / "cdc_outbox" / "watch" / "page" / name).read_bytes() for name in carried - {"__init__.py"}
    }


def test_an_installed_wheel_finds_its_sql(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    found = look(tmp_path)
    assert Path(found["package"]).is_relative_to(tmp_path)
    assert Path(found["directory"]) == tmp_path / "cdc_outbox" / "sql"
    assert found["names"] == NAMES
    assert found["outbox"] == (CHECKOUT / "sql" / "outbox.sql").read_text()
    assert found["sql"] is False


def test_an_editable_install_reads_the_sql_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    with zipfile.ZipFile(build("editable", tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    found = look(tmp_path / "site")
    assert Path(found["package"]).is_relative_to(CHECKOUT)
    assert Path(found["directory"]) == CHECKOUT / "sql"
    assert found["names"] == NAMES
    # The checkout is on the path then, but its directory sql/ is no package that could stand before another.
    assert found["sql"] in (False, None)
    assert not (CHECKOUT / "sql" / "__init__.py").exists()


def copy_of_checkout(target: Path, age: int) -> Path:
    """The files that are packaged, elsewhere and with another time than the checkout's."""
    for name in ("cdc_outbox", "sql", "docs", "docker", "tests"):
        shutil.copytree(CHECKOUT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in CHECKOUT.iterdir():
        if path.is_file():
            shutil.copy(path, target)
    for path in target.rglob("*"):
        os.utime(path, (age, age))
    return target


def test_wheel_and_sdist_are_the_same_bytes_wherever_and_whenever_they_are_built(tmp_path: Path) -> None:
    built = []
    for name, age in (("one", 1_000_000_000), ("two", 1_700_000_000)):
        (tmp_path / name).mkdir()
        checkout = copy_of_checkout(tmp_path / name, age)
        out = tmp_path / f"dist-{name}"
        out.mkdir()
        built.append([build(kind, out, checkout).read_bytes() for kind in ("wheel", "sdist")])
    assert built[0] == built[1]


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        archive.extractall(tmp_path)
    (unpacked,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert {"CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "LICENSE", "Makefile", "mkdocs.yml"} <= {
        path.name for path in unpacked.iterdir()
    }
    again = build("wheel", tmp_path, unpacked)
    assert again.read_bytes() == wheel.read_bytes()


def test_the_wheel_carries_the_manual(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (page,) = (name for name in archive.namelist() if name.endswith("/man1/cdc-outbox.1"))
        assert archive.read(page) == (CHECKOUT / "docs" / "man" / "cdc-outbox.1").read_bytes()
