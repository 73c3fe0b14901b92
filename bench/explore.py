"""How long the explorer's page takes to answer, in a headless Chromium: `data-updated-ms`, drawing included.

Starts `sparsesim explore` as a user would, opens a page, and steps one slider. Prints, for each page, the first
answer of the warm server, and the least, median and largest time after a step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import browser

PAGES = {
    "A100 PCIe, 4096x2048x4096": {"gpu": "a100_pcie_80gb", "m": 4096, "n": 2048, "k": 4096},
    "A100 PCIe, 3072x1024x3072, stream, warm": {"m": 3072, "n": 1024, "k": 3072, "timing": "stream", "l2": "warm"},
    "H100 PCIe, 4096x4096x4096": {"gpu": "h100_pcie", "m": 4096, "n": 4096, "k": 4096},
    "RTX 4090, Llama-3.1-8B prefill": {"gpu": "rtx4090", "workload": "llama-3.1-8b"},
}
SLIDER = '[id="s-l2.bytes"]'
STEPS = 12


def main() -> None:
    """Print one line for each page."""
    command = [sys.executable, "-m", "sparsesim", "explore", "--port", "0", "--json", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, browser.started() as chromium:
        try:
            assert server.stdout is not None
            text = ""
            for line in server.stdout:  # a server that ends early ends this loop, too
                text += line
                if line == "}\n":
                    break
            address = json.loads(text)["address"]
            with browser.visit(chromium, address) as seen:  # the first answer of a server loads the compiled loop
                browser.answered(seen.page)
            print(f"{'page':<42}{'first':>8}{'least':>8}{'median':>8}{'largest':>8}  [ms]")
            for name, fields in PAGES.items():
                with browser.visit(chromium, f"{address}?{urlencode(fields)}") as seen:
                    first = browser.answered(seen.page)
                    seen.page.focus(SLIDER)
                    steps = []
                    for _ in range(STEPS):  # ever on: no state comes twice, so that no answer is a kept one
                        seen.page.keyboard.press("ArrowRight")
                        steps.append(browser.answered(seen.page))
                print(f"{name:<42}{first:>8}{min(steps):>8}{statistics.median(steps):>8.0f}{max(steps):>8}")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
