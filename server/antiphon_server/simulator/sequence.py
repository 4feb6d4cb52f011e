"""One request's tokens and the blocks that hold their KV."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from antiphon_server.simulator.blocks import BlockPool, first_parent, next_key
from antiphon_server.simulator.kv import BlockKv, extend, follow, length


class Sequence:
    """Grows by shared, then pulled, then computed tokens. Shapes: one key per full block of ``tokens``.

    ``tokens`` is one longer than ``computed`` after a step: the token sampled last has no KV yet.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        root: bytes,
        block_size: int,
        tokens: Tokens[int],
        salt: str | None,
        seed: str,
    ) -> None:
        self.tokens: list[int] = []
        self.keys: list[bytes] = []
        self.computed = 0
        self.blocks: list[int] = []
        self._pool = pool
        self._size = block_size
        self._parent = first_parent(salt, seed)
        self._starts = [root]
        self.append(tokens)

    @property
    def state(self) -> bytes:
        """State of all KV the sequence has; the next token depends on it."""
        index, offset = divmod(self.computed, self._size)
        return follow(self._starts[index], self._kv(index)) if offset else self._starts[index]

    @property
    def tail(self) -> str:
        """Hex digest of the tokens after the last full block."""
        full = len(self.keys) * self._size
        return next_key(self.keys[-1] if self.keys else self._parent, self.tokens[full:]).hex()

    def append(self, tokens: Tokens[int]) -> None:
        """Add tokens that have no KV yet."""
        self.tokens.extend(tokens)
        while (end := (len(self.keys) + 1) * self._size) <= len(self.tokens):
            parent = self.keys[-1] if self.keys else self._parent
            self.keys.append(next_key(parent, self.tokens[end - self._size : end]))

    def share(self, block_ids: list[int]) -> None:
        """Begin with full blocks of the engine's own prefix cache."""
        self._pool.share(block_ids)
        self.blocks.extend(block_ids)
        self._advance(len(block_ids) * self._size)

    def reserve(self, tokens: int) -> None:
        """Take the blocks that ``tokens`` tokens need in all.

        Raises:
            OutOfBlocksError: they are not free.
        """
        self.blocks.extend(self._pool.allocate(max(0, -(-tokens // self._size) - len(self.blocks))))

    def load(self, contents: list[BlockKv]) -> None:
        """Fill the next blocks with KV from elsewhere, cached under this sequence's keys as engines do."""
        first = self.computed // self._size
        total = self.computed
        for index, kv in enumerate(contents, start=first):
            self._pool[self.blocks[index]].kv = kv
            total += length(kv)
        self._advance(total)

    def compute(self, until: int) -> int:
        """Compute KV up to ``until`` tokens; returns how many that were."""
        count = until - self.computed
        while self.computed < until:
            index = self.computed // self._size
            end = min(until, (index + 1) * self._size)
            block = self._pool[self.blocks[index]]
            block.kv = extend(self._starts[index], block.kv, tuple(self.tokens[self.computed : end]))
            self._advance(end)
        return count

    def release(self) -> None:
        """Give all blocks back."""
        self._pool.release(self.blocks)
        self.blocks = []

    def trim(self) -> None:
        """Give back the blocks beyond those that hold KV."""
        used = -(-self.computed // self._size)
        self._pool.release(self.blocks[used:])
        del self.blocks[used:]

    def _kv(self, index: int) -> BlockKv:
        return self._pool[self.blocks[index]].kv

    def _advance(self, computed: int) -> None:
        for index in range(len(self._starts) - 1, computed // self._size):
            self._starts.append(follow(self._starts[index], self._kv(index)))
            self._pool.cache(self.blocks[index], self.keys[index])
        self.computed = computed
