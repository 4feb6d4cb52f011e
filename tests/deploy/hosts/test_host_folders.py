"""What lies in a host's folder is touched only if it was rendered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from antiphon_server.cli import app
from deploy.hosts.test_site import changed

THEIRS = ("database.env", "nginx.service", "start.sh")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def rendered(written: dict[str, Any], out: Path, *more: str) -> Result:
    site = out.with_name("site.yaml")
    site.write_text(yaml.safe_dump(written))
    return CliRunner().invoke(app, ["hosts", str(site), "--out", str(out), *more])


def texts(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize(
    ("words", "named"), [([""], "SITE.yaml"), (["site.yaml", "--out", ""], "--out")], ids=["site", "out"]
)
def test_an_empty_name_is_not_the_current_folder(
    announcement: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.yaml").write_text(yaml.safe_dump(announcement))
    ran = CliRunner().invoke(app, ["hosts", *words])
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == f"{named} is empty: name one; is the variable set that it was taken from?\n"
    assert [one.name for one in tmp_path.iterdir()] == ["site.yaml"]


def test_a_folder_that_cannot_be_written_is_named_with_a_remedy(
    announcement: dict[str, Any], out: Path
) -> None:
    out.write_text("theirs")
    ran = rendered(announcement, out)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith(f"--out = {out}/")
    assert "Not a directory: name a folder that can be written" in ran.stderr


def test_files_of_somebody_else_are_named_and_left(announcement: dict[str, Any], out: Path) -> None:
    (out / "p0").mkdir(parents=True)
    for name in THEIRS:
        (out / "p0" / name).write_text("theirs")
    ran = rendered(announcement, out)
    assert ran.exit_code == 1
    for name in THEIRS:
        assert f"--out = {out}/p0/{name}: was not written by this command" in ran.output
    assert texts(out) == {f"p0/{name}": "theirs" for name in THEIRS}


def test_what_does_not_go_onto_the_host_may_lie_beside(announcement: dict[str, Any], out: Path) -> None:
    assert rendered(announcement, out).exit_code == 0
    (out / "p0" / "notes.md").write_text("theirs")
    assert rendered(announcement, out).exit_code == 0
    assert (out / "p0" / "notes.md").read_text() == "theirs"


def test_what_was_rendered_is_rendered_anew(announcement: dict[str, Any], out: Path) -> None:
    changed(announcement, "engines.tensor_parallel", 4)
    changed(announcement, "hosts.d0.decode", 2)
    assert rendered(announcement, out).exit_code == 0
    before = texts(out)
    assert "d0/engine-decode-1.env" in before
    (out / "d0" / "router.env").write_text("edited")
    assert rendered(announcement, out).exit_code == 0
    assert texts(out) == before
    changed(announcement, "hosts.d0.decode", 1)
    assert rendered(announcement, out).exit_code == 0
    assert before.keys() - texts(out).keys() == {"d0/engine-decode-1.env"}


def test_folder_of_a_host_that_is_gone_is_no_part_of_the_fleet(
    announcement: dict[str, Any], out: Path
) -> None:
    changed(announcement, "hosts.d7", {"address": "10.0.0.17", "decode": 1})
    changed(announcement, "hosts.d8", {"address": "10.0.0.18", "decode": 1})
    assert rendered(announcement, out).exit_code == 0
    (out / "other").mkdir()
    (out / "other" / "start.sh").write_text("theirs")
    (out / "d8" / "notes.md").write_text("theirs")
    del announcement["hosts"]["d7"], announcement["hosts"]["d8"]
    ran = rendered(announcement, out)
    assert ran.exit_code == 0
    assert f"notice: {out}/d7: removed what was rendered into it" in ran.stderr
    assert "still there: notes.md" in ran.stderr
    assert not (out / "d7").exists()
    assert [*texts(out / "d8"), *texts(out / "other")] == ["notes.md", "start.sh"]


def test_a_list_reaches_no_file_elsewhere(announcement: dict[str, Any], out: Path) -> None:
    assert rendered(announcement, out).exit_code == 0
    outside = out.with_name("outside.env")
    outside.write_text("theirs")
    listed = out / "p0" / "rendered.txt"
    listed.write_text(listed.read_text() + "../../outside.env\n")
    assert rendered(announcement, out).exit_code == 0
    assert outside.read_text() == "theirs"


def test_a_link_is_replaced_and_not_followed(announcement: dict[str, Any], out: Path) -> None:
    assert rendered(announcement, out).exit_code == 0
    outside = out.with_name("outside.env")
    outside.write_text("theirs")
    (out / "p0" / "host.env").unlink()
    (out / "p0" / "host.env").symlink_to(outside)
    assert rendered(announcement, out).exit_code == 0
    assert outside.read_text() == "theirs"
    assert not (out / "p0" / "host.env").is_symlink()


def test_a_file_in_place_of_a_folder_is_named(announcement: dict[str, Any], out: Path) -> None:
    out.mkdir()
    (out / "d0").write_text("theirs")
    ran = rendered(announcement, out)
    assert ran.exit_code == 1
    assert f"--out = {out}/d0: was not written by this command" in ran.output
    assert texts(out) == {"d0": "theirs"}
