"""The explorer: a local web page that answers while a slider is dragged. See `docs/explore.md`.

`state` is what the page's address says, `answers` computes, `hardware_file` writes the GPU that the sliders made,
`server` speaks HTTP; the page itself is in `page/`.
"""

from sparsesim.explore.answers import Explorer
from sparsesim.explore.state import State, parse_state

__all__ = ["Explorer", "State", "parse_state"]
