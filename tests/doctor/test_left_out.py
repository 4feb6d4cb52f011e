"""What belongs to a fleet and is not seen from here: said, and never taken for a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_server.doctor.declared.manifests import ManifestError, read
from antiphon_server.doctor.finding import Finding, Severity
from doctor import goods
from doctor.goods import looked_at, write
from doctor.test_odd_files import call, refuse

UNITS = goods.ROOT / "server" / "deploy" / "systemd"
SERVICE = "p: {image: 'antiphon/engine:1', command: [prefill], shm_size: 4g}"


def found(folder: Path, check: str = "unread-file") -> list[Finding]:
    return [one for one in looked_at(folder).findings if one.check == check]


def wrong(folder: Path) -> list[Finding]:
    return [one for one in looked_at(folder).findings if one.severity is not Severity.NOTE]


# --- what Compose reads besides


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"compose.override.yaml": "services: {p: {}}"}, "compose.override.yaml is merged by Compose"),
        ({"compose.override.yml": "services: {p: {}}"}, "compose.override.yml is merged by Compose"),
        ({".env": "COMPOSE_FILE=compose.yaml:more.yaml"}, "more.yaml is merged by Compose"),
        (
            {"compose.yaml": f"include: [a.yaml]\nservices: {{{SERVICE}}}"},
            "include: Compose reads more files",
        ),
        ({"compose.yaml": "services: {p: {extends: {file: a.yaml, service: e}}}"}, "extends of p"),
    ],
    ids=lambda given: given if isinstance(given, str) else None,
)
def test_files_that_compose_reads_and_the_doctor_does_not_are_told(
    tmp_path: Path, files: dict[str, str], told: str
) -> None:
    write({"compose.yaml": f"services: {{{SERVICE}}}", **files}, tmp_path)
    (said,) = found(tmp_path)
    assert (said.severity, said.subject) == (Severity.WARNING, "compose.yaml")
    assert told in said.what
    assert "config --no-interpolate > whole.yaml && antiphon doctor whole.yaml" in said.remedy
    assert call("--strict", str(tmp_path)).exit_code == 1


def test_an_override_that_is_named_is_told_where_it_belongs(tmp_path: Path) -> None:
    text = f"services: {{{SERVICE}}}"
    write({"compose.yaml": text, "compose.override.yaml": text}, tmp_path)
    with pytest.raises(
        ManifestError, match=r"is merged into compose\.yaml by Compose: in its folder: docker"
    ):
        read([tmp_path / "compose.yaml", tmp_path / "compose.override.yaml"], {})


@pytest.mark.parametrize("files", [{".env": "COMPOSE_FILE=compose.yaml"}, {"b.yaml": "services: {}"}])
def test_what_compose_does_not_read_is_not_told(tmp_path: Path, files: dict[str, str]) -> None:
    write({"compose.yaml": f"services: {{{SERVICE}}}", **files}, tmp_path)
    if "COMPOSE_FILE" in files.get(".env", ""):
        write({"compose.override.yaml": "services: {p: {}}"}, tmp_path)
    assert found(tmp_path) == []


# --- profiles


def test_profiles_that_the_environment_leaves_out_are_not_judged(tmp_path: Path) -> None:
    files = dict(goods.compose().files)
    files["compose.yaml"] = files["compose.yaml"].replace(
        "  decode-gpu:\n", "  decode-gpu:\n    shm_size: 1m\n"
    )
    folder = write(files, tmp_path)
    for given, names in (
        ({"COMPOSE_PROFILES": "efa, redis"}, ["compose.yaml (efa, redis)"]),
        ({"COMPOSE_PROFILES": "*"}, [f"compose.yaml ({name})" for name in ("cpu", "efa", "gpu")]),
        ({"COMPOSE_PROFILES": ""}, [f"compose.yaml ({name})" for name in ("cpu", "efa", "gpu")]),
    ):
        scenes = read([folder], given)
        assert [scene.name for scene in scenes] == names
    (efa,) = read([folder], {"COMPOSE_PROFILES": "efa"})
    assert {one.subject for one in efa.declared.engines} == {
        "compose.yaml: prefill-efa",
        "compose.yaml: decode-efa",
    }
    assert efa.declared.stores == ()


def test_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"COMPOSE_PROFILES = eaf chooses none .* one of cpu, efa, gpu"):
        read([write(goods.compose().files, tmp_path)], {"COMPOSE_PROFILES": "eaf"})


# --- keys in .env


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_keys_in_an_env_that_everyone_may_read_are_told(tmp_path: Path, mode: int) -> None:
    folder = write(goods.compose().files, tmp_path)
    (folder / ".env").chmod(mode)
    said = found(folder, "plain-secret")
    # Not Grafana's password, which no service of ours is given.
    told = f"ANTIPHON_ENGINE_KEY is in {folder / '.env'}, which every user of this machine may read"
    assert [one.what for one in said] == [told] * (mode == 0o644)


# --- environment files


@pytest.mark.parametrize("how", ["missing", "forbidden"])
def test_a_router_whose_file_is_not_seen_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = write(goods.units().files, tmp_path)
    if how == "missing":
        (folder / "d0" / "router.env").unlink()
    else:
        refuse(monkeypatch, "router.env")
    assert wrong(folder) == []
    (said,) = found(folder)
    assert (said.subject, said.severity) == ("d0/antiphon-router.service", Severity.NOTE)
    assert "router.env cannot be read: " in said.what


def test_settings_that_are_not_seen_are_not_judged_by_their_defaults(tmp_path: Path) -> None:
    """Decode's leases suit a renew_interval of 5, which only router.env says; one router of two is known."""
    files = dict(goods.units().files)
    files["d0/engine-decode-0.env"] = files["d0/engine-decode-0.env"].replace("TTL=480", "TTL=20")
    files |= {f"d1/{Path(path).name}": text for path, text in files.items() if "router" in path}
    folder = write(files, tmp_path)
    assert {one.check for one in wrong(folder)} == {"lease-budget", "shared-store"}
    for host in ("d0", "d1"):
        (folder / host / "router.env").unlink()
    assert wrong(folder) == []


def test_what_is_given_beside_an_unseen_file_is_judged(tmp_path: Path) -> None:
    folder = write(goods.units().files, tmp_path)
    (folder / "d0" / "router.env").unlink()
    unit = folder / "d0" / "antiphon-router.service"
    unit.write_text(unit.read_text().replace("[Service]\n", "[Service]\nEnvironment=ANTIPHON_KEEP_SHARE=5\n"))
    assert [(one.check, one.what.partition(":")[0]) for one in wrong(folder)] == [
        ("router-settings", "keep_share = 5")
    ]


def test_an_engine_whose_file_is_not_seen_is_noted_and_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(goods.units().files, tmp_path)
    refuse(monkeypatch, "engine-prefill-0.env")
    assert wrong(folder) == []
    assert {one.subject for one in looked_at(folder).findings if one.check == "unread-file"} == {
        "p0/antiphon-engine@prefill-0.service"
    }


def test_units_without_their_files_say_which(tmp_path: Path) -> None:
    """As they stand in server/deploy/systemd."""
    assert wrong(UNITS) == []
    told = {one.subject: one.what for one in found(UNITS)}
    assert "/etc/antiphon/router.env cannot be read" in told["systemd/antiphon-router.service"]
    engine = "no /etc/antiphon/engine-*.env beside it"
    assert engine in told["systemd/antiphon-engine@.service"]
    ran = call(str(UNITS / "antiphon-engine@.service"))
    assert (ran.exit_code, engine in ran.stderr) == (2, True)


def test_a_service_of_compose_lacks_a_file_that_must_be_there(tmp_path: Path) -> None:
    router = "r: {image: 'antiphon/router:1', stop_grace_period: 1m, env_file: router.env}"
    write({"compose.yaml": f"services: {{{SERVICE}, {router}}}"}, tmp_path)
    assert wrong(tmp_path) == []
    assert [one.subject for one in found(tmp_path)] == ["compose.yaml: r"]
    optional = router.replace("router.env}", "[{path: router.env, required: false}]}")
    write({"compose.yaml": f"services: {{{SERVICE}, {optional}}}"}, tmp_path)
    assert {one.check for one in wrong(tmp_path)} == {"router-settings"}


def test_a_routers_own_file_is_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("antiphon router --config /etc/no/router.yaml\n")
    assert wrong(tmp_path) == []
    assert [one.severity for one in found(tmp_path)] == [Severity.NOTE]
