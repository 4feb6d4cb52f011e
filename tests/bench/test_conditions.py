from __future__ import annotations

import platform
from pathlib import Path

from antiphon_server.bench.conditions import cpu_name


def test_cpu_has_the_kernels_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  Processor @ 2.60GHz\n")
    assert cpu_name(cpuinfo) == "Intel Xeon Processor @ 2.60GHz"


def test_cpu_without_a_name_is_its_architecture(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "missing") == platform.machine()
