"""Figures: functions that take results and return a matplotlib `Figure`; the only user of matplotlib.

They draw what results hold and work out nothing but its place on the page and its unit. Importing this
package changes no state of matplotlib: no backend is chosen, no parameter set, no pyplot imported. `save`
writes a figure as PNG.
"""

from sparsesim.figures.accounting import draw_accounting
from sparsesim.figures.designs import DesignPanel, draw_designs
from sparsesim.figures.frontier import draw_frontier
from sparsesim.figures.maps import draw_breakeven, draw_expansion, draw_patterns
from sparsesim.figures.roofline import draw_roofline
from sparsesim.figures.speedup import SpeedupCurve, draw_speedup
from sparsesim.figures.style import save
from sparsesim.figures.timeline import draw_timeline
from sparsesim.figures.utilisation import draw_utilisation
from sparsesim.figures.waterfall import draw_waterfall
from sparsesim.figures.whatif import draw_tornado, draw_whatif

__all__ = [
    "DesignPanel",
    "SpeedupCurve",
    "draw_accounting",
    "draw_breakeven",
    "draw_designs",
    "draw_expansion",
    "draw_frontier",
    "draw_patterns",
    "draw_roofline",
    "draw_speedup",
    "draw_timeline",
    "draw_tornado",
    "draw_utilisation",
    "draw_waterfall",
    "draw_whatif",
    "save",
]
