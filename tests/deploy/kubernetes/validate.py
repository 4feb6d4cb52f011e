"""Objects against their schemas: Kubernetes' own, closed, of a package; those of other APIs from schemas/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate

from deploy.kubernetes.objects import templates

SCHEMAS = Path(__file__).parent / "schemas"
NEWEST = "1.37"
OLDEST = "1.30"
"""The first that knows the sleep of a preStop without being asked to."""


def faults(item: dict[str, Any], version: str = NEWEST) -> list[str]:
    """What is wrong with an object, by path."""
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [_told(item, error)]
    except kubernetes_validate.SchemaNotFoundError:
        return _others(item, version)
    return []


def _others(item: dict[str, Any], version: str) -> list[str]:
    file = SCHEMAS / f"{item['kind'].lower()}.json"
    if not file.exists():
        return [f"{item['kind']} of {item['apiVersion']}: no schema to check it with"]
    checked = jsonschema.Draft202012Validator(json.loads(file.read_text()))
    found = [_told(item, error) for error in checked.iter_errors(item)]
    if item["kind"] == "LeaderWorkerSet" and not found:
        for template in templates(item):
            whole = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": "t"},
                "template": template,
            }
            found += faults(whole, version)
    return found


def _told(item: dict[str, Any], error: Any) -> str:
    path = ".".join(map(str, error.path))
    return f"{item['kind']} {item['metadata']['name']}: {path}: {error.message[:300]}"
