"""The explorer over HTTP: loopback only unless told otherwise, the Host header checked, GET only, nothing external.

Built on Starlette and uvicorn, see `docs/explore.md` for why.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from sparsesim.errors import UserError
from sparsesim.explore.answers import Explorer
from sparsesim.explore.hardware_file import file_name, hardware_file
from sparsesim.explore.state import State, parse_state
from sparsesim.lowering import NoKernelError

__all__ = ["make_app", "open_socket", "serve"]

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_TARGET = 8000
#: exact answers that run at once: each may use every core
EXACT_AT_ONCE = 2


def make_app(explorer: Explorer, hosts: tuple[str, ...] = LOOPBACK) -> Any:
    """The ASGI application; a request whose Host is none of `hosts` is refused, whatever port it names."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Receive, Scope, Send

    class Guard:
        """Refuses foreign hosts (a page elsewhere could else have its name point here) and endless addresses."""

        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await self.app(scope, receive, send)
                return
            request = Request(scope)
            status, text = 200, ""
            if host_name(request.headers.get("host", "")) not in hosts:
                status, text = 403, f"Host: expected {' or '.join(hosts)}, found another"
            elif len(request.scope["path"]) + len(request.scope["query_string"]) > MAX_TARGET:
                status, text = 414, f"address: expected at most {MAX_TARGET} characters, found more"
            if text:
                await JSONResponse({"errors": [text]}, status, HEADERS)(scope, receive, send)
                return
            await self.app(scope, receive, send)

    def static(name: str, kind: str) -> Callable[[Request], Response]:
        content = (PAGE / name).read_bytes()
        return lambda request: Response(content, 200, HEADERS, kind)

    exact = asyncio.Semaphore(EXACT_AT_ONCE)
    alone = asyncio.Semaphore(1)

    def asked(request: Request, own: tuple[str, ...]) -> tuple[State, dict[str, int]]:
        """The state of the address, and the integers of `own` that come with it."""
        pairs = list(request.query_params.multi_items())
        numbers: dict[str, int] = {}
        lines = []
        for name in own:
            texts = [value for key, value in pairs if key == name]
            text = texts[0] if len(texts) == 1 else ""
            if not (text.isascii() and text.isdigit() and len(text) <= 6):
                lines.append(f"{name}: expected one integer, found {text[:40]!r}")
            else:
                numbers[name.removeprefix("at_")] = int(text)
        if lines:
            raise UserError(lines)
        return parse_state([pair for pair in pairs if pair[0] not in own], explorer.boards), numbers

    def api(
        compute: Callable[..., dict[str, Any]], own: tuple[str, ...], turn: AbstractAsyncContextManager[Any]
    ) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            async with turn:
                if await request.is_disconnected():  # the page has gone on to something else
                    return Response(status_code=204, headers=HEADERS)

                def work() -> dict[str, Any]:
                    state, numbers = asked(request, own)
                    return compute(state, **numbers)

                try:
                    return JSONResponse(await run_in_threadpool(work), 200, HEADERS)
                except (UserError, NoKernelError) as error:
                    lines = error.problems if isinstance(error, UserError) else [str(error)]
                    return JSONResponse({"errors": lines}, 400, HEADERS)

        return endpoint

    def choices(request: Request) -> Response:
        return JSONResponse(explorer.choices(), 200, HEADERS)

    def download(request: Request) -> Response:
        try:
            state, _ = asked(request, ())
        except UserError as error:
            return JSONResponse({"errors": error.problems}, 400, HEADERS)
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{file_name(state)}"'}
        return Response(hardware_file(state), 200, headers, "application/toml")

    sides = ("at_m", "at_n", "at_k")
    routes = [
        *(Route(path, static(*file), methods=["GET"]) for path, file in FILES.items()),
        Route("/api/choices", choices, methods=["GET"]),
        Route("/api/answer", api(explorer.answer, (), exact), methods=["GET"]),
        Route("/api/estimate", api(explorer.estimate, (), exact), methods=["GET"]),
        Route("/api/alone", api(explorer.alone, (), exact), methods=["GET"]),
        Route("/api/point", api(explorer.point, sides, exact), methods=["GET"]),
        Route("/api/row", api(explorer.row, ("index",), exact), methods=["GET"]),
        Route("/api/losses", api(explorer.losses, (), alone), methods=["GET"]),
        Route("/hardware.toml", download, methods=["GET"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard)])


def host_name(header: str) -> str:
    """The name in a Host header, without its port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises UserError if the address cannot be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(address)
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise UserError(f"--host, --port: expected an address that is free, found {host}:{port} ({error})") from None
    return made


def serve(app: Any, listening: socket.socket) -> None:
    """Answer until interrupted."""
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none")
    uvicorn.Server(config).run(sockets=[listening])
