"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium, see `browser.started`; tests that want it are skipped where there is none.

    One for each test file: Playwright holds the thread's event loop while it runs.
    """
    import browser as chromium

    try:
        chromium.chromium()
    except chromium.NoBrowserError as error:
        pytest.skip(str(error))
    with chromium.started() as running:
        yield running
