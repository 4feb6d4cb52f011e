"""Files that cannot be read, or not all of them: a word that names them, never a hang or a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from antiphon_server.cli import app
from antiphon_server.doctor.declared import files
from antiphon_server.doctor.declared.manifests import ManifestError, read
from antiphon_server.doctor.finding import Severity
from doctor import goods
from doctor.goods import looked_at, write

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


def refuse(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No user may read files of that name; this test's may be root, who reads all."""
    opened = os.open

    def denied(path: os.PathLike[str] | str, *rest: int) -> int:
        if Path(path).name == name and Path(path).exists():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", denied)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_pipe, "no regular file"),
        (_text(BOMB + "services: {x: {image: *a9}}\n"), "aliases grow"),
        (_text(MERGES + "services: {x: *a9}\n"), "aliases grow"),
        (_text("services: &s {x: *s}\n"), "refers to itself"),
        (_text("services: " + "[" * 5000 + "]" * 5000), "nested too deeply"),
        (_text("#" * (files.LARGEST + 1)), "larger than 2 MiB: give the part with the engines"),
        (lambda path: path.write_bytes(b"\xff\xfe") and None, "not UTF-8 text: name a text file"),
    ],
    ids=["pipe", "aliases", "merges", "itself", "nested", "large", "binary"],
)
def test_what_would_take_for_ever_is_refused(tmp_path: Path, make: Callable[[Path], None], told: str) -> None:
    make(tmp_path / "odd.yaml")
    ran = call(str(tmp_path / "odd.yaml"))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert told in ran.stderr
    assert "odd.yaml" in ran.stderr
    assert "give a compose file" not in ran.stderr  # one remedy, its own


def test_aliases_that_stay_small_are_taken(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("prefill: &a [http://a:1]\ndecode: *a\n")
    assert len(read([tmp_path / "r.yaml"], {})) == 1


def test_a_path_that_is_too_long_is_named() -> None:
    ran = call("x" * 5000)
    assert ran.exit_code == 2
    assert "File name too long" in ran.stderr


def test_a_folder_of_everything_is_not_walked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[read.__module__], "MOST_FILES", 3)
    for name in "abc":
        (tmp_path / name).touch()
    with pytest.raises(ManifestError, match="holds more than 3 files"):
        read([tmp_path], {})


def test_what_vanishes_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(goods.up("cpu").files, tmp_path)
    (tmp_path / "gone.yaml").touch()
    opened = os.open

    def vanished(path: os.PathLike[str] | str, *rest: int) -> int:
        (tmp_path / "gone.yaml").unlink(missing_ok=True)
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", vanished)
    assert [scene.name for scene in read([tmp_path], {})] == ["stack.sh"]


def test_secrets_that_may_not_be_read_are_noted_and_the_rest_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(goods.units().files, tmp_path)
    (tmp_path / "d0" / "secrets.env").write_text("ANTIPHON_ENGINE_KEY=k\n")
    refuse(monkeypatch, "secrets.env")
    seen = looked_at(tmp_path)
    assert [one for one in seen.findings if one.severity is not Severity.NOTE] == []
    said = [one for one in seen.findings if one.check == "unread-file"]
    assert [one.subject for one in said] == [
        "d0/antiphon-engine@decode-0.service",
        "d0/antiphon-router.service",
    ]
    assert "secrets.env cannot be read: Permission denied, so its variables" in said[0].what
    assert len(seen.checked) > 40


@pytest.mark.parametrize(("mode", "told"), [(0o644, True), (0o640, False), (0o600, False)])
def test_keys_in_an_environment_file_that_everyone_may_read_are_told(
    tmp_path: Path, mode: int, told: bool
) -> None:
    unit = "[Service]\nEnvironmentFile=engines.env\nExecStart=antiphon engine prefill\n"
    (tmp_path / "a.service").write_text(unit)
    text = "services: {p: {image: 'antiphon/engine:1', command: [prefill], env_file: engines.env}}"
    (tmp_path / "compose.yaml").write_text(text)
    file = tmp_path / "engines.env"
    file.write_text("ANTIPHON_ENGINE_KEY=hunter2\nHF_TOKEN=hf_hunter2\nANTIPHON_ENGINE_MODEL=m\n")
    file.chmod(mode)
    said = [one for one in looked_at(tmp_path).findings if one.check == "plain-secret"]
    assert {one.subject.rpartition("/")[2] for one in said} == (
        {"a.service", "compose.yaml: p"} if told else set()
    )
    assert [one.what.partition(" ")[0] for one in said] == ["ANTIPHON_ENGINE_KEY", "HF_TOKEN"] * 2 * told
    assert all(f"chmod 600 {file}" in one.remedy and "hunter2" not in str(one) for one in said)


def test_an_env_that_may_not_be_read_ends_with_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(goods.compose().files, tmp_path)
    refuse(monkeypatch, ".env")
    ran = call(str(tmp_path))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert f"{tmp_path / '.env'} cannot be read: Permission denied" in ran.stderr


def test_a_target_that_may_not_be_read_asks_for_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(goods.up("cpu").files, tmp_path)
    refuse(monkeypatch, "stack.sh")
    ran = call(str(tmp_path / "stack.sh"))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.endswith("Permission denied: run the doctor as a user that may read it\n")


def test_a_folder_that_may_not_be_read_asks_for_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    ran = call(str(tmp_path))
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert "(Permission denied): run the doctor as a user that may read it" in ran.stderr


def test_one_file_of_a_folder_that_may_not_be_read_is_a_warning_for_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(goods.up("cpu").files, tmp_path)
    (tmp_path / "other.yaml").touch()
    refuse(monkeypatch, "other.yaml")
    assert [(one.check, one.severity, one.subject) for one in looked_at(tmp_path).findings] == [
        ("unread-file", Severity.WARNING, "other.yaml")
    ]
    assert call("--strict", str(tmp_path)).exit_code == 1


def test_a_routers_file_that_grows_beyond_bounds_is_noted(tmp_path: Path) -> None:
    (tmp_path / "router.cfg").write_text(BOMB + "prefill: *a9\n")
    (tmp_path / "a.sh").write_text(
        f"antiphon router --config {tmp_path / 'router.cfg'} --decode http://127.0.0.1:1\n"
    )
    (said,) = looked_at(tmp_path).findings  # no word of what the file may say
    assert (said.check, said.severity) == ("unread-file", Severity.WARNING)
