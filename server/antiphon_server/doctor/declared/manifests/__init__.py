"""Files that declare a fleet, each read into the same form."""

from antiphon_server.doctor.declared.manifests.read import read
from antiphon_server.doctor.declared.manifests.scene import ManifestError, Scene

__all__ = ["ManifestError", "Scene", "read"]
