"""Handles in few bytes, as very many of them rest in memory."""

from __future__ import annotations

import zlib

import msgspec

from antiphon_server.protocol import Handle

_LEVEL = 1
# Routers of one fleet read each other's handles: another dictionary asks for another version of their keys.
_DICTIONARY = (
    b'{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[["remote_engine_id":"_dp0",'
    b'"remote_request_id":"chatcmpl-","remote_host":"127.0.0.1","remote_port":5600,"tp_size":1,"dcp_size":1,'
    b'"pp_size":1,"remote_num_tokens":null,"remote_blocks_expiry_time":"transfer_mode":"read","antiphon":'
    b'{"algorithm":"sha256_cbor","seed":"block_size":16,"tokens":"chain":"'
)


def pack(handle: Handle) -> bytes:
    """JSON, compressed."""
    compressor = zlib.compressobj(_LEVEL, zdict=_DICTIONARY)
    return compressor.compress(msgspec.json.encode(handle)) + compressor.flush()


def unpack(data: bytes) -> Handle:
    """What was packed; JSON is taken as it is.

    Raises:
        ValueError: packed by another version, or damaged.
    """
    try:
        if not data.startswith(b"{"):
            data = zlib.decompressobj(zdict=_DICTIONARY).decompress(data)
        return msgspec.json.decode(data, type=Handle)
    except (zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"a handle of {len(data)} bytes cannot be read: {error}") from error
