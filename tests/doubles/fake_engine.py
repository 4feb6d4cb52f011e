"""Stands for vLLM's API server in the tests of ``antiphon up``: the simulator behind vLLM's command line.

Environment: ``FAKE_DIES`` holds the role that ends with exit code 3 instead of starting; an engine ends with
4 when the file that ``FAKE_DIES_LATER`` names appears.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys

from antiphon_server.simulator import Settings, SimulatedEngine, serve


def told_to_die() -> bool:
    return os.path.exists(os.environ.get("FAKE_DIES_LATER", "/nowhere"))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name")
    parser.add_argument("--kv-transfer-config", type=json.loads)
    known, _ = parser.parse_known_args()
    role = {"kv_producer": "prefill", "kv_consumer": "decode"}[known.kv_transfer_config["kv_role"]]
    if os.environ.get("FAKE_DIES") == role:
        print("RuntimeError: no memory for KV cache", flush=True)
        sys.exit(3)
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    settings = Settings(
        role="prefill" if role == "prefill" else "decode",
        model=known.served_model_name,
        kv_load_failure_policy=known.kv_transfer_config["kv_load_failure_policy"],
    )
    async with serve(SimulatedEngine(settings), port=known.port):
        print("Application startup complete", os.getpid(), flush=True)
        while not ending.is_set():
            if told_to_die():
                sys.exit(4)
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
