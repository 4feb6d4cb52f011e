"""How much memory a router takes for what it knows of idle conversations, each with a turn of 1,000 tokens.

Measured in a process of its own, which prints JSON. Arguments: conversations to serve; the router's bound for
kept and for known ones.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import subprocess
import sys
import uuid

import psutil

from antiphon_server.protocol import Seal, pack_chain, sealed
from antiphon_server.router.config.settings import RouterSettings
from antiphon_server.router.fleet.placement import Place
from antiphon_server.router.gate.identity import Key, identify
from antiphon_server.router.plan.extent import Extent
from antiphon_server.router.state import State
from antiphon_server.router.store.frontier import Frontier
from antiphon_server.router.store.packed import pack

BLOCKS, BLOCK_SIZE = 32, 32


def handle(number: int) -> tuple[bytes, str]:
    """Of a turn of about 1,000 tokens, as a vLLM engine gives it; and its lease."""
    lease = f"chatcmpl-{uuid.UUID(bytes=random.Random(-number).randbytes(16))}-0-{number:08x}"
    digests = random.Random(number)
    chain = pack_chain(digests.randbytes(8) for _ in range(BLOCKS))
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[(number * BLOCKS + block) % 100_000 for block in range(BLOCKS)]],
        "remote_engine_id": "0d8f2a5e-1111-4222-8333-123456789abc_dp0",
        "remote_request_id": lease,
        "remote_host": "10.120.130.140",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_blocks_expiry_time": 123456.789012,
    }
    seal = Seal("sha256_cbor", "0123456789abcdef", BLOCK_SIZE, BLOCKS * BLOCK_SIZE + 7, chain)
    return pack(sealed(params, seal)), lease


def named(number: int) -> Key:
    """Key of a turn. All texts are new objects, as they are when they come from a request."""
    model = json.loads('"organisation/a-model-of-some-size"')
    tenant = json.loads('"' + "a" * 32 + '"')
    conversation = str(uuid.UUID(int=number))
    key = identify({"model": model, "conversation_id": conversation}, {}, tenant).key
    assert key is not None
    return key


async def serve(state: State, number: int) -> None:
    """What two turns leave behind."""
    now = state.clock()
    data, lease = handle(number)
    for _ in range(2):
        key = named(number)
        state.returns.began(key, now)
        state.returns.ended(key, now)
    frontier = Frontier(
        key,
        data,
        lease,
        "http://10.120.130.140:8200",
        "0123456789abcdef",
        BLOCKS * BLOCK_SIZE + 7,
        now + 60.0,
        now + number * 1e-6,
        prompt_tokens=1000,
        extent=Extent(4000 + number, number << 8, number << 7),
        began=now - 1.0,
    )
    await state.store.record(frontier)
    state.placement.remember(key, Place("http://10.120.130.139:8100", frontier.worker))


def grown(conversations: int, bound: int) -> dict[int, int]:
    """Bytes by which a router grew when it had served ``bound`` conversations and when all, by number served.
    ``bound``: those it may keep."""
    command = [sys.executable, "-m", __spec__.name, str(conversations), str(bound)]
    done = subprocess.run(command, capture_output=True, check=True)
    return {int(number): size for number, size in json.loads(done.stdout)["grown"].items()}


async def main(conversations: int, bound: int) -> None:
    engines = {"prefill": ["http://10.120.130.139:8100"], "decode": ["http://10.120.130.140:8200"]}
    settings = RouterSettings(**engines, conversations=bound, tenant_conversations=bound, known=bound)  # type: ignore[arg-type]
    state = State(settings)
    process = psutil.Process()
    await serve(state, conversations)
    gc.collect()
    before = process.memory_info().rss
    sizes = {}
    for number in range(conversations):
        await serve(state, number)
        if number + 1 in {bound, conversations}:
            gc.collect()
            sizes[str(number + 1)] = process.memory_info().rss - before
    print(json.dumps({"grown": sizes, "held": len(await state.store.held())}))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
