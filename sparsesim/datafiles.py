"""Where the package's own data files are: `hw_configs/` and `workloads/`.

In a checkout (or an editable install) they are the top-level folders; in a wheel they are inside the
package as `sparsesim/_data/…`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["data_dir"]


def data_dir(kind: str) -> Path:
    """Folder of the packaged files of `kind`, ``"hw_configs"`` or ``"workloads"``."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / kind, package.parent / kind):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"the installation lacks its {kind} folder next to {package}")
