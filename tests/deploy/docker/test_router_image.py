"""The router's image without a container engine: the Dockerfile's own lines install, start and ask it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from antiphon_server.router.config.options import options
from conftest import StartStack
from deploy.compose.project import services
from deploy.docker.image import Image, router
from rig.command import free_port

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return router(tmp_path_factory.mktemp("router"))


def installed(image: Image) -> set[str]:
    python = image.command(["python3"])
    listed = "from importlib import metadata; print(*(d.name for d in metadata.distributions()))"
    done = subprocess.run([*python, "-c", listed], capture_output=True, text=True, check=True)
    return {name.lower() for name in done.stdout.split()}


def test_it_has_the_router_and_nothing_to_run_or_train_models(image: Image) -> None:
    names = installed(image)
    assert {"antiphon", "uvicorn", "redis", "prometheus_client"} <= names
    assert names & {"torch", "vllm", "transformers", "numpy", "openai", "pytest", "pip"} == set()
    assert len(names) < 50
    (site,) = (image.root / "opt" / "antiphon" / "lib").glob("python*/site-packages")
    packages = ("antiphon", "antiphon_langgraph", "antiphon_openai", "antiphon_server")
    assert [name for name in packages if not (site / name / "__init__.py").is_file()] == []


def test_its_versions_are_the_pinned_ones(image: Image) -> None:
    python = image.command(["python3"])
    listed = (
        "from importlib import metadata; print(*(f'{d.name}=={d.version}' for d in metadata.distributions()))"
    )
    done = subprocess.run([*python, "-c", listed], capture_output=True, text=True, check=True)
    pins = (image.root / "src" / "requirements" / "cpu.txt").read_text().lower().splitlines()
    assert [one for one in done.stdout.lower().split() if one not in pins] == ["antiphon==0.1.0"]


def test_it_starts_serves_and_says_that_it_is_well(
    image: Image, simulated_stack: StartStack, tmp_path: Path
) -> None:
    """With the environment and the health check that compose.yaml gives it."""
    stack = simulated_stack()
    port = free_port()
    service = services("cpu")["router"]
    own = {"ANTIPHON_HOST": "127.0.0.1", "ANTIPHON_PORT": str(port)}
    own |= {"ANTIPHON_PREFILL": stack.prefill_url, "ANTIPHON_DECODE": stack.decode_url}
    checks = [image.stage.health, service["healthcheck"]["test"][1:]]
    assert image.stage.env["ANTIPHON_PORT"] == "8000"
    checks = [[word.replace(":8000/", f":{port}/") for word in check] for check in checks]
    assert not any(image.well(check) for check in checks)
    before = {path for path in image.root.rglob("*") if not path.is_relative_to(image.root / "src")}
    with image.container([], {**service["environment"], **own}) as process:
        end = time.monotonic() + PATIENCE_S
        while not all(image.well(check) for check in checks):
            assert process.poll() is None
            assert time.monotonic() < end
        body = {
            "model": "simulated",
            "messages": [{"role": "user", "content": "hello"}],
            "conversation_id": "c",
        }
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        assert httpx.post(url, json=body, trust_env=False, timeout=PATIENCE_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    after = {path for path in image.root.rglob("*") if not path.is_relative_to(image.root / "src")}
    assert after == before, "its root is to be read-only"


def test_the_doctor_runs_in_it(image: Image, simulated_stack: StartStack, tmp_path: Path) -> None:
    """In Kubernetes only a router's pod reaches the engines."""
    stack = simulated_stack()
    words = ["antiphon", "doctor", "--router", stack.router]
    words += ["--prefill", stack.prefill_url, "--decode", stack.decode_url]
    before = {path for path in image.root.rglob("*") if not path.is_relative_to(image.root / "src")}
    ran = subprocess.run(
        image.command(words), env=image.environ({}), cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checks of the running fleet" in ran.stdout
    after = {path for path in image.root.rglob("*") if not path.is_relative_to(image.root / "src")}
    assert (after, list(tmp_path.iterdir())) == (before, []), "its root is read-only"


def test_ready_is_asked_where_compose_waits_and_health_where_a_restart_would_follow(image: Image) -> None:
    assert image.stage.health[-1].endswith("/health")
    assert services("cpu")["router"]["healthcheck"]["test"][-1].endswith("/ready")
    assert image.stage.one("STOPSIGNAL") == "SIGTERM"
    assert set(image.stage.env) - {"PATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"} <= {
        option.variable for option in options()
    }
