"""`ascend-perf serve`: the pages over HTTP, to this machine alone."""

from __future__ import annotations

import argparse
import functools
import http.server
import ipaddress
import os
import sys
import urllib.parse
from http import HTTPStatus
from pathlib import Path
from typing import Any

from dashboards.pages.build import RECORD
from dashboards.pages.markup import POLICY, visible

EXAMPLES = """examples:
  ascend-perf serve                  http://127.0.0.1:8000/ shows .asv/site
  ascend-perf serve --site DIR --port 0      any free port, which is printed"""

USAGE = 4
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FEED = "application/atom+xml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the subcommand."""
    parser.epilog = EXAMPLES
    parser.add_argument("--site", help="folder of the site (default: site beside the results)")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--config", default="asv.conf.json")


def run(given: argparse.Namespace) -> int:
    """Serves until it is stopped; 4 when there is no site or the port is taken."""
    from dashboards.run import results_folder

    try:
        site = Path(given.site) if given.site else results_folder(given.config).parent / "site"
    except Exception as error:  # asv has an exception of its own for every way a configuration can be wrong
        print(f"ascend-perf serve: {given.config} cannot be read: {error}", file=sys.stderr)
        return USAGE
    if not (site / RECORD).is_file():
        print(f"ascend-perf serve: {site} holds no pages; `ascend-perf dashboard` makes them", file=sys.stderr)
        return USAGE
    try:
        server = open_server(site, given.port)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        print(f"ascend-perf serve: port {given.port}: {why}", file=sys.stderr)
        return USAGE
    with server:
        print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
        server.serve_forever()
    return 0


def open_server(site: Path, port: int) -> http.server.ThreadingHTTPServer:
    """A server of one folder on the loopback interface."""
    handler = functools.partial(Handler, site=site.resolve())
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


def find(site: Path, target: str) -> Path | None:
    """The file of the site that a request's target names; None where it names none, or anything else."""
    path = urllib.parse.unquote(target.partition("?")[0].partition("#")[0], errors="replace")
    if "\0" in path or "\\" in path:
        return None
    parts = [part for part in path.split("/") if part]
    if any(part.startswith(".") for part in parts):
        return None
    place = site.joinpath(*parts)
    try:
        real = place.resolve()
        if real.is_dir():
            real = (real / "index.html").resolve()
        # a link inside the folder may point out of it
        return real if real.is_file() and real.is_relative_to(site) else None
    except (OSError, ValueError):
        return None


class Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of files below one folder, asked for by a name of this machine."""

    server_version = "ascend-perf"
    sys_version = ""

    def __init__(self, *arguments: Any, site: Path) -> None:
        self.site = site
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answers with a file."""
        self.answer(body=True)

    def do_HEAD(self) -> None:
        """Answers with the headers of a file."""
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        """Sends a file or says why not."""
        if not is_local(self.headers.get("Host", "")):
            # a page elsewhere may have pointed its own name at this machine
            self.send_error(HTTPStatus.FORBIDDEN, "ask for 127.0.0.1 or localhost")
            return
        place = find(self.site, self.path)
        try:
            file = place.open("rb") if place else None
        except OSError:
            file = None
        if place is None or file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file:
            kind = FEED if place.name == "feed.xml" else TYPES.get(place.suffix, "application/octet-stream")
            self.send_response(HTTPStatus.OK)
            self.send_header(
                "Content-Type", kind + ("; charset=utf-8" if kind != "application/octet-stream" else "")
            )
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.send_header("Content-Security-Policy", POLICY + "; frame-ancestors 'none'")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
            if body:
                self.copy(file)

    def copy(self, file: Any) -> None:
        """The file's bytes; a browser that went away is no error."""
        try:
            while chunk := file.read(1 << 16):
                self.wfile.write(chunk)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests that failed, on one line each."""
        if self.command not in ("GET", "HEAD") or (arguments and str(arguments[0])[:1] in "45"):
            print(visible(format % arguments), file=sys.stderr)


def is_local(host: str) -> bool:
    """Whether a Host header names this machine by a name that nobody else can own."""
    try:
        name = urllib.parse.urlsplit("//" + host).hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
