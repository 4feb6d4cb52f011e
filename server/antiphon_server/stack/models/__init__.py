"""Models of the stack: ``smollm2`` (small, trained), ``tiny``, ``tiny-bpe`` (random), folders, hub ids."""

from antiphon_server.stack.models.model import CHATML, Model, ModelError, resolve

__all__ = ["CHATML", "Model", "ModelError", "resolve"]
