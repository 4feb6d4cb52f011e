"""A host's folder, and a machine whose programs are stand-ins."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from antiphon_server.deploy.host_files import standing

PATIENCE_S = 60


class Host:
    """``root``: holds its own ``/etc``, its software, and the programs that come before the machine's."""

    def __init__(self, root: Path, environment: str) -> None:
        self.folder, self.etc, self.prefix = (root / name for name in ("host", "etc", "opt"))
        self._programs = root / "programs"
        for folder in (self.folder, self.etc, self._programs):
            folder.mkdir()
        for name, text in standing("efa").items():
            (self.folder / name).write_text(text)
        (self.folder / "host.env").write_text(environment)

    def program(self, name: str, body: str) -> None:
        file = self._programs / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)

    def run(
        self,
        script: str,
        *words: str,
        path: str = os.environ["PATH"],
        environ: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """``path``: where programs lie that have no stand-in."""
        return subprocess.run(
            ["bash", str(self.folder / script), *words],
            env={
                "PATH": f"{self._programs}:{path}",
                "ETC": str(self.etc),
                "PREFIX": str(self.prefix),
                "HOME": str(self.etc),
                **(environ or {}),
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
