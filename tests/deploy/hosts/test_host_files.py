"""What is rendered for each host: one source with ``antiphon up``, nothing that clashes."""

from __future__ import annotations

import shlex
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from antiphon_server.cli import app
from antiphon_server.deploy.environment_file import text_of
from antiphon_server.deploy.host_files import HostFiles
from antiphon_server.router.config.config import load
from deploy.hosts.sites import EXAMPLES, Sites, variables


def test_the_announcements_fleet(announcement: dict[str, Any], sites: Sites) -> None:
    hosts = sites.hosts(announcement)
    assert list(hosts) == ["p0", "d0"]
    prefill = variables(hosts["p0"].files["engine-prefill-0.env"])
    decode = variables(hosts["d0"].files["engine-decode-0.env"])
    assert prefill["ANTIPHON_ENGINE_ADDRESS"] == "10.0.0.10"
    assert prefill["ANTIPHON_ENGINE_GPUS"] == "0,1,2,3,4,5,6,7"
    assert prefill["ANTIPHON_ENGINE_FLAGS"] == "--max-num-seqs 8"
    assert set(prefill) == set(decode)
    differing = {name for name in prefill if prefill[name] != decode[name]}
    assert differing == {"ANTIPHON_ENGINE_ROLE", "ANTIPHON_ENGINE_ADDRESS", "ANTIPHON_ENGINE_PORT"}
    router = variables(hosts["d0"].files["router.env"])
    assert router["ANTIPHON_PREFILL"] == "http://10.0.0.10:8100"
    assert router["ANTIPHON_DECODE"] == "http://10.0.0.11:8200"
    assert "router.env" not in hosts["p0"].files
    assert "antiphon-router.service" not in hosts["p0"].files


def test_libfabric_is_chosen_on_every_engine(announcement: dict[str, Any], sites: Sites) -> None:
    for host in sites.hosts(announcement).values():
        assert '"backends": ["LIBFABRIC"]' in host.files["commands.txt"]
        assert "FI_PROVIDER=efa" in host.files["commands.txt"]


def test_engines_of_a_host_share_neither_gpus_nor_ports(fleet: dict[str, HostFiles]) -> None:
    for host in fleet.values():
        told = [variables(text) for name, text in host.files.items() if name.startswith("engine-")]
        assert len(told) == 2
        ports = [one[f"ANTIPHON_ENGINE_{name}"] for one in told for name in ("PORT", "SIDE_CHANNEL_PORT")]
        gpus = [gpu for one in told for gpu in one["ANTIPHON_ENGINE_GPUS"].split(",")]
        assert max(Counter(ports).values()) == 1
        assert sorted(gpus) == [str(gpu) for gpu in range(8)]


def test_side_channels_leave_a_port_for_each_rank(announcement: dict[str, Any], sites: Sites) -> None:
    announcement["engines"] |= {"tensor_parallel": 2, "data_parallel": 2}
    announcement["hosts"]["d0"]["decode"] = 2
    files = sites.hosts(announcement)["d0"].files
    told = [variables(files[f"engine-decode-{i}.env"])["ANTIPHON_ENGINE_SIDE_CHANNEL_PORT"] for i in (0, 1)]
    assert told == ["5600", "5602"]


def test_every_router_is_told_every_engine_and_the_store(fleet: dict[str, HostFiles]) -> None:
    routers = [host for host in fleet.values() if host.router_url]
    assert [host.name for host in routers] == ["p1", "d1"]
    for host in routers:
        loaded = load({}, variables(host.files["router.env"]))
        assert loaded.settings is not None, loaded.explain()
        assert len(loaded.settings.prefill) == len(loaded.settings.decode) == 4
        assert loaded.settings.store == "redis://10.0.0.20:6379/0"
        assert loaded.settings.host == host.host.address
        assert f"http://{host.host.address}:{loaded.settings.port}" == host.router_url
        assert set(loaded.settings.decode) == {
            engine.spec.url
            for one in fleet.values()
            for engine in one.engines
            if "decode" in engine.spec.name
        }


def test_the_unit_waits_for_the_routers_grace(
    announcement: dict[str, Any], fleet: dict[str, HostFiles], sites: Sites
) -> None:
    assert "\nTimeoutStopSec=180\n" in fleet["d1"].files["antiphon-router.service"]
    plain = sites.hosts(announcement)["d0"].files["antiphon-router.service"]
    assert "\nTimeoutStopSec=90\n" in plain


def test_no_key_is_in_any_file(announcement: dict[str, Any], monkeypatch: Any, sites: Sites) -> None:
    monkeypatch.setenv("ANTIPHON_ENGINE_KEY", "s3cret")
    assert not any(
        "s3cret" in text for host in sites.hosts(announcement).values() for text in host.files.values()
    )


ODD = {
    "PLAIN": "a/b-c_d:e,f",
    "SPACES": "--x 1",
    "QUOTES": """'{"a": "it's $HOME `x` \\ "}'""",
    "EMPTY": "",
    "HASH": "a # b",
}


def test_an_environment_file_is_read_by_a_shell_as_it_was_meant() -> None:
    assert variables(text_of(ODD, "odd")) == ODD


def test_flags_survive_the_file_and_the_command(announcement: dict[str, Any], sites: Sites) -> None:
    flags = ["--hf-overrides", '{"a": "it\'s 1"}', "--seed", "1"]
    announcement["engines"]["flags"] = flags
    text = sites.hosts(announcement)["p0"].files["engine-prefill-0.env"]
    assert shlex.split(variables(text)["ANTIPHON_ENGINE_FLAGS"]) == flags


def test_command_writes_a_folder_for_each_host_and_prints_the_steps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = CliRunner().invoke(app, ["hosts", str(EXAMPLES / "site.yaml"), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert sorted(one.name for one in out.iterdir()) == ["d0", "p0"]
    assert (out / "p0" / "start.sh").stat().st_mode & 0o111
    assert f"rsync -a {out}/p0/ dist/antiphon-*.whl ubuntu@10.0.0.10:antiphon/" in ran.stdout
    syntax = subprocess.run(["bash", "-n"], input=ran.stdout, text=True, capture_output=True, check=False)
    assert (syntax.returncode, syntax.stderr) == (0, "")


def test_command_renders_one_host_alone_and_prints_without_writing(tmp_path: Path) -> None:
    site = str(EXAMPLES / "site.yaml")
    out = tmp_path / "out"
    ran = CliRunner().invoke(app, ["hosts", site, "--host", "p0", "--print", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "### p0/engine-prefill-0.env" in ran.stdout
    # The other is only asked for its key.
    assert [line for line in ran.stdout.splitlines() if "10.0.0.11" in line] == [
        "for HOST in ubuntu@10.0.0.10 ubuntu@10.0.0.11; do"
    ]
    assert not out.exists()
    unknown = CliRunner().invoke(app, ["hosts", site, "--host", "p7", "--out", str(out)])
    assert unknown.exit_code == 1
    assert "--host = p7: no such host; the site has p0, d0" in unknown.output


@pytest.mark.parametrize("example", ["site.yaml", "site-fleet.yaml"])
def test_examples_are_sound(example: str) -> None:
    ran = CliRunner().invoke(app, ["hosts", str(EXAMPLES / example), "--print"])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("example", ["site.yaml", "site-fleet.yaml"])
def test_the_doctor_reads_what_is_rendered_and_finds_it_sound(example: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert CliRunner().invoke(app, ["hosts", str(EXAMPLES / example), "--out", out]).exit_code == 0
    examined = CliRunner().invoke(app, ["doctor", out])
    assert examined.exit_code == 0, examined.output
    assert "ERROR" not in examined.output
    changed = tmp_path / "out" / "d0" / "engine-decode-0.env"
    changed.write_text(changed.read_text().replace("10.0.0.", "127.0.0."))
    assert CliRunner().invoke(app, ["doctor", out]).exit_code == 1
