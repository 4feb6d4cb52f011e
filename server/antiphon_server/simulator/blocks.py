"""An engine's KV blocks: who holds them, what is in them, and which prompt they are cached under."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from antiphon_server.simulator.kv import BlockKv


def first_parent(salt: str | None, seed: str) -> bytes:
    """What the first block's key is chained to. Equal tokens under another ``cache_salt`` have other keys."""
    return sha256(f"{seed}\0{salt or ''}".encode()).digest()


def next_key(parent: bytes, tokens: Iterable[int]) -> bytes:
    """Key of a block: its tokens, as the engine believes them to be, chained to the block before."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free."""


@dataclass(slots=True)
class Block:
    """One block. A block without references keeps its contents, and its key, until it is handed out again."""

    id: int
    references: int = 0
    kv: BlockKv = ()
    key: bytes | None = None


class BlockPool:
    """``capacity`` blocks with ids from 1. Free blocks are handed out longest unused first."""

    def __init__(self, capacity: int, *, prefix_caching: bool = True) -> None:
        self.capacity = capacity
        self._caching = prefix_caching
        self._blocks = {number: Block(number) for number in range(1, capacity + 1)}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(self._blocks)
        self._cached: dict[bytes, int] = {}

    def __getitem__(self, block_id: int) -> Block:
        return self._blocks[block_id]

    @property
    def free(self) -> int:
        """Blocks nobody references."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Blocks somebody references."""
        return self.capacity - len(self._free)

    def holds(self, block_id: int) -> bool:
        """True when the engine has such a block."""
        return block_id in self._blocks

    def lookup(self, keys: Iterable[bytes]) -> list[int]:
        """The leading blocks that are cached under these keys."""
        found: list[int] = []
        for key in keys:
            block_id = self._cached.get(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def share(self, block_ids: Iterable[int]) -> None:
        """Reference blocks that are already filled."""
        for block_id in block_ids:
            self._blocks[block_id].references += 1
            self._free.pop(block_id, None)

    def allocate(self, count: int) -> list[int]:
        """``count`` empty blocks.

        Raises:
            OutOfBlocksError: fewer are free.
        """
        if count > len(self._free):
            raise OutOfBlocksError(f"{count} blocks asked for, {len(self._free)} of {self.capacity} are free")
        taken: list[int] = []
        for _ in range(count):
            block_id, _nothing = self._free.popitem(last=False)
            block = self._blocks[block_id]
            if block.key is not None and self._cached.get(block.key) == block_id:
                del self._cached[block.key]
            block.key, block.kv, block.references = None, (), 1
            taken.append(block_id)
        return taken

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference each. The end of a sequence is recycled before its beginning."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            block.references -= 1
            if block.references < 0:
                raise AssertionError(f"block {block_id} was released more often than it was taken")
            if block.references == 0:
                self._free[block_id] = None

    def forget(self) -> bool:
        """Empty the cache. False, and nothing is done, while anybody references a block."""
        if self.used:
            return False
        for block_id in self._cached.values():
            self._blocks[block_id].key = None
        self._cached.clear()
        return True

    def cache(self, block_id: int, key: bytes) -> None:
        """Offer a full block to later prompts that hash to ``key``, whatever is really in it."""
        if self._caching and key not in self._cached:
            self._cached[key] = block_id
            self._blocks[block_id].key = key
