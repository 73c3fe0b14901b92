"""Foreign files as workloads: model graphs, configs, checkpoint headers and traces.

Each reader turns one format into the project's own form. It knows no GPU and no stack, and imports the library of
its format inside the function that needs it. What it cannot turn into a GEMM stays in the workload by name.
"""

from sparsesim.importers.imported import Imported
from sparsesim.importers.read import FORMATS, detect_format, import_file

__all__ = ["FORMATS", "Imported", "detect_format", "import_file"]
