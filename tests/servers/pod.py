"""What a pod would run: the command of a manifest, with its settings and secrets as files below a directory."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Manifest = dict[str, Any]


class Pod:
    """The one container of a Deployment or a Job.

    Attributes: `arguments`, of the image's entry point; `environment`, its variables.
    """

    def __init__(self, workload: Manifest, objects: Sequence[Manifest], root: Path) -> None:
        """Write each volume that has files below `root`, from the ConfigMaps and Secrets among `objects`.

        Paths that the container has mounted are those below `root`, in its variables and files too.
        """
        spec = workload["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        sources = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {
            mount["mountPath"]: sources[mount["name"]]
            for mount in container["volumeMounts"]
            if "emptyDir" not in sources[mount["name"]]
        }
        mounted = re.compile(f"({'|'.join(map(re.escape, mounts))})(?=/)")

        def moved(text: str) -> str:
            return mounted.sub(rf"{root}\1", text)

        for path, volume in mounts.items():
            place = Path(f"{root}{path}")
            place.mkdir(parents=True)
            for name, content in _files(volume, objects).items():
                (place / name).write_text(moved(content))
        self.arguments: list[str] = container["args"]
        self.environment = {each["name"]: moved(each["value"]) for each in container["env"]}


def _files(volume: Manifest, objects: Sequence[Manifest]) -> dict[str, str]:
    if "configMap" in volume:
        kind, name = "ConfigMap", volume["configMap"]["name"]
    else:
        kind, name = "Secret", volume["secret"]["secretName"]
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    data: dict[str, str] = found["data"]
    return (
        data if kind == "ConfigMap" else {key: base64.b64decode(text).decode() for key, text in data.items()}
    )
