from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_server.stack.models import ModelError, resolve, smollm2
from antiphon_server.stack.models.cache import build_once, cache_folder
from antiphon_server.stack.models.tiny import CONTEXT, tiny

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
np = pytest.importorskip("numpy")

from tokenizers import Tokenizer  # noqa: E402

BYTES = 256


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def byte_tokenizer(cache: Path) -> Any:
    return Tokenizer.from_file(str(tiny(cache) / "tokenizer.json"))


@pytest.fixture(scope="module")
def bpe_tokenizer(cache: Path) -> Any:
    return Tokenizer.from_file(str(tiny(cache, bpe=True) / "tokenizer.json"))


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("bpe", [False, True])
def test_generated_models_are_the_same_everywhere(tmp_path: Path, bpe: bool) -> None:
    first, second = (hashes(tiny(tmp_path / name, bpe=bpe)) for name in ("a", "b"))
    assert set(first) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert first == second


def test_ids_are_byte_values(byte_tokenizer: Any) -> None:
    assert byte_tokenizer.encode("a\né").ids == [0x61, 0x0A, 0xC3, 0xA9]
    assert byte_tokenizer.encode("<|im_start|>x<|im_end|><|endoftext|>").ids == [256, ord("x"), 257, 258]


@given(st.text())
def test_text_is_its_bytes_and_comes_back(byte_tokenizer: Any, text: str) -> None:
    ids = byte_tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == text


@given(st.lists(st.integers(0x20, 0x7E)))
def test_what_greedy_sampling_gives_tokenises_to_the_same_ids(
    byte_tokenizer: Any, sampled: list[int]
) -> None:
    text = byte_tokenizer.decode(sampled, skip_special_tokens=False)
    if "<|" in text:  # spelled-out specials: 1 in 95^12, and no test of the model's exactness hangs on it
        return
    assert byte_tokenizer.encode(text).ids == sampled


@given(st.text())
def test_bpe_text_comes_back_too(bpe_tokenizer: Any, text: str) -> None:
    assert bpe_tokenizer.decode(bpe_tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_sampled_bpe_tokens_drift(bpe_tokenizer: Any) -> None:
    drawn = np.random.Generator(np.random.PCG64(1)).integers(0, 1000, size=(50, 32)).tolist()
    printable = [[token for token in row if bpe_tokenizer.decode([token]).isprintable()] for row in drawn]
    kept = [bpe_tokenizer.encode(bpe_tokenizer.decode(row)).ids == row for row in printable]
    assert sum(kept) <= 1


@pytest.mark.parametrize("bpe", [False, True])
def test_only_printable_ascii_has_weight_in_the_head(cache: Path, bpe: bool) -> None:
    from safetensors.numpy import load_file

    folder = tiny(cache, bpe=bpe)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert head.shape[0] == tokenizer.get_vocab_size()
    for token in range(head.shape[0]):
        text = tokenizer.decode([token], skip_special_tokens=False)
        plain = text.isascii() and text.isprintable() and not text.startswith("<|")
        assert bool(np.any(head[token])) == plain, (token, text)


def test_config_names_the_end_of_a_turn(cache: Path) -> None:
    config = json.loads((tiny(cache) / "config.json").read_text())
    assert (config["eos_token_id"], config["vocab_size"]) == (257, BYTES + 3)
    assert config["max_position_embeddings"] == CONTEXT >= 16384
    assert not config["tie_word_embeddings"]


BUILDER = """
import sys, time
from pathlib import Path
from antiphon_server.stack.models.cache import build_once

target, marks, arrivals = map(Path, sys.argv[1:])

def build(folder):
    while len(arrivals.read_text().split()) < 4:  # so that all want it before one has it
        time.sleep(0.01)
    with marks.open("a") as log:
        log.write("built\\n")
    (folder / "file").write_text("whole")

with arrivals.open("a") as log:
    log.write("here ")
build_once(target, build, valid=lambda folder: (folder / "file").is_file())
assert (target / "file").read_text() == "whole"
"""


def test_many_processes_build_once(tmp_path: Path) -> None:
    target, marks = tmp_path / "cache" / "model", tmp_path / "marks"
    command = [sys.executable, "-c", BUILDER, *map(str, (target, marks, tmp_path / "arrivals"))]
    builders = [subprocess.Popen(command) for _ in range(4)]
    assert [builder.wait() for builder in builders] == [0] * 4
    assert marks.read_text() == "built\n"


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        build_once(tmp_path / "model", fail, valid=Path.is_dir)
    assert [path.name for path in tmp_path.iterdir()] == [".model.lock"]
    build_once(tmp_path / "model", lambda folder: None, valid=Path.is_dir)
    assert (tmp_path / "model").is_dir()


def test_an_invalid_model_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "old").touch()
    build_once(
        target, lambda folder: (folder / "new").touch(), valid=lambda folder: (folder / "new").exists()
    )
    assert [path.name for path in target.iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"ANTIPHON_CACHE": "/a", "XDG_CACHE_HOME": "/x"}, "/a"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/antiphon"),
        ({}, str(Path.home() / ".cache" / "antiphon")),
    ],
)
def test_the_cache_folder_follows_the_environment(environ: dict[str, str], folder: str) -> None:
    assert str(cache_folder(environ)) == folder


def test_a_built_in_model_is_generated_into_the_cache(tmp_path: Path) -> None:
    environ = {"ANTIPHON_CACHE": str(tmp_path)}
    told = resolve("tiny", environ, build=False)
    assert not list(tmp_path.iterdir())
    model = resolve("tiny", environ)
    assert model == told
    assert (
        model.context == json.loads((Path(model.path) / "config.json").read_text())["max_position_embeddings"]
    )
    assert model.chat_template is not None
    assert model.chat_template.is_file()


def test_a_folder_with_config_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 777}}')
    model = resolve(str(tmp_path), {})
    assert (model.name, model.path, model.context, model.local) == (tmp_path.name, str(tmp_path), 777, True)
    assert model.chat_template is None


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(str(tmp_path), {})


def test_a_hub_id_goes_to_vllm_untouched() -> None:
    model = resolve("Qwen/Qwen3-0.6B", {})
    assert (model.name, model.path, model.local, model.context) == ("Qwen/Qwen3-0.6B",) * 2 + (False, None)


def test_a_hub_id_offline_needs_the_hubs_cache(tmp_path: Path) -> None:
    environ = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    with pytest.raises(ModelError, match="unset HF_HUB_OFFLINE"):
        resolve("Qwen/Qwen3-0.6B", environ)
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    assert not resolve("Qwen/Qwen3-0.6B", environ).local


@pytest.mark.parametrize("name", ["gpt", "a/b/c", "../x", ""])
def test_anything_else_is_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ModelError, match=r"smollm2, tiny, tiny-bpe|config\.json"):
        resolve(name, {})


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    for name in (*smollm2.HASHED_ALWAYS, "model.safetensors"):
        (tmp_path / name).write_text(f"content of {name}")
    smollm2.write_manifest(tmp_path)
    return tmp_path


def _other_size(path: Path) -> None:
    path.write_text("short")


def _same_size(path: Path) -> None:
    path.write_text(path.read_text().replace("c", "C"))


def _gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("name", "damage", "quick", "full"),
    [
        ("config.json", lambda path: None, True, True),
        ("model.safetensors", _other_size, False, False),
        ("model.safetensors", _same_size, True, False),
        ("tokenizer.json", _same_size, False, False),
        ("tokenizer.json", _gone, False, False),
        (smollm2.MANIFEST, _gone, False, False),
        (smollm2.MANIFEST, _other_size, False, False),
    ],
)
def test_damage_to_the_converted_model_is_found(
    converted: Path, name: str, damage: Callable[[Path], None], quick: bool, full: bool
) -> None:
    damage(converted / name)
    assert smollm2.verify(converted) is quick
    assert smollm2.verify(converted, full=full is not quick or full) is full
