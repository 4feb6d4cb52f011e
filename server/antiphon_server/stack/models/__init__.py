"""Models of the stack: ``smollm2`` (small, trained), ``tiny`` and ``tiny-bpe`` (random), folders and hub ids."""

from antiphon_server.stack.models.model import CHATML, Model, ModelError, resolve

__all__ = ["CHATML", "Model", "ModelError", "resolve"]
