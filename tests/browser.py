"""A headless Chromium for tests of pages: finds one, or installs one, or says why there is none.

Playwright drives it. Looked for in this order: the file that ``SPARSESIM_CHROMIUM`` names (empty: no browser, and
tests that need one are skipped), a Chromium or Chrome on the path, one that Playwright has downloaded. Else it is
installed: by apt where that is there and the user may, else by Playwright's own download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
#: one process group less, and nothing that calls home; no sandbox, for tests may run as root in a container
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--no-first-run",
)  # fmt: skip
INSTALL_SECONDS = 300
#: milliseconds that a page may take on a busy machine
SLOW = 60_000


class NoBrowserError(RuntimeError):
    """No browser was found and none could be installed."""


@dataclass
class Visit:
    """A page that is open, with all that went wrong in it: console errors, exceptions, requests that left it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@cache
def chromium() -> str:
    """Path of the browser; raises NoBrowserError."""
    named = os.environ.get("SPARSESIM_CHROMIUM")
    if named is not None:
        if Path(named).is_file():
            return named
        raise NoBrowserError(f"SPARSESIM_CHROMIUM names no file: {named!r}")
    found = _found()
    if found is None:
        _install()
        found = _found()
    if found is None:
        raise NoBrowserError("no Chromium on the path, and neither apt nor `playwright install` could bring one")
    return found


def _found() -> str | None:
    on_path = next((path for path in map(shutil.which, NAMES) if path), None)
    if on_path:
        return on_path
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).is_file() else None


def _install() -> None:
    """Try each way in turn until one has brought a browser."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if shutil.which("apt-get") and os.geteuid() == 0:
        ways.insert(0, ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"])
        ways.insert(0, ["apt-get", "update"])
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for way in ways:
        try:
            subprocess.run(way, env=env, timeout=INSTALL_SECONDS, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if _found():
            return


@contextmanager
def started() -> Iterator[Any]:
    """A running browser (Playwright's `Browser`); raises NoBrowserError."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield launched
        finally:
            launched.close()


@contextmanager
def visit(browser: Any, address: str, width: int = 1280, height: int = 900, **context: Any) -> Iterator[Visit]:
    """Open `address` in a fresh context; every request beyond it, and every error, is on record."""
    opened = browser.new_context(viewport={"width": width, "height": height}, **context)
    page = opened.new_page()
    seen = Visit(page)
    page.on(
        "console", lambda message: seen.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("requestfailed", lambda request: seen.errors.append(f"failed: {request.url}"))
    page.on("request", lambda request: None if request.url.startswith("data:") else seen.requests.append(request.url))
    try:
        page.goto(address)
        yield seen
    finally:
        opened.close()


def answered(page: Any) -> int:
    """Wait until every panel of the explorer has an answer; the milliseconds that the page says it took."""
    page.wait_for_selector("html[data-updated-ms]", state="attached", timeout=SLOW)
    return int(page.get_attribute("html", "data-updated-ms"))
