from __future__ import annotations

from doubles.fake_vllm import fake_vllm as fake_vllm
