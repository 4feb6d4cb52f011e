"""Files that declare a fleet, each read into the same form."""

from antiphon_server.doctor.manifests.read import read
from antiphon_server.doctor.manifests.scene import ManifestError, Scene

__all__ = ["ManifestError", "Scene", "read"]
