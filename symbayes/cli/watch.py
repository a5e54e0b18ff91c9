"""`symbayes watch`: the page of a run while it trains, on this machine alone."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any

import typer

from symbayes.cli.terminal import CHECKPOINT, console
from symbayes.data.folders import is_locked, place_of
from symbayes.data.storage import DAMAGE, error_words, read_json
from symbayes.dynamics.summary import DISCOVERY
from symbayes.report.live import live_page
from symbayes.report.page import with_notice
from symbayes.report.runs import PAGE, make_page
from symbayes.training.checkpoint import RUNNING, is_checkpoint, parts_of
from symbayes.training.live import LIVE, read_live
from symbayes.training.record import SUMMARY

#: The only interface, and the names by which a browser may ask for it: a page of another name that leads here gets nothing.
_HERE = "127.0.0.1"
_NAMES = (_HERE, "localhost", "[::1]")
#: Seconds between looks of the terminal, and for which a browser may keep the server waiting.
_LOOK, _WAIT = 1.0, 10.0


@dataclass(frozen=True)
class Seen:
    """How it stands with a run: in a sentence, whether it is under way, and what makes its page."""

    words: str
    is_running: bool
    page: Callable[[], str]


def look(folder: Path) -> Seen:
    """How it stands with the run in a folder.

    Raises:
        ValueError: If there is none, or it is damaged.
    """
    inner = folder / CHECKPOINT
    parts = parts_of(inner if inner.is_dir() else folder)
    place = max((part for part in parts if (part / LIVE).is_file()), key=lambda part: _time(part / LIVE), default=parts[0])
    live, results = read_live(place), [at for name in (SUMMARY, DISCOVERY) if (at := place_of(folder, name)) is not None]
    if is_locked(folder / RUNNING):
        done = live is not None and live.history[-1].epoch >= live.history[-1].epochs
        words = "The last epoch is done; the result is being judged and saved." if done else "Training goes on."
        return Seen(words, True, lambda: live_page(live, words))
    if results and (live is None or _time(results[0]) >= _time(place / LIVE)):
        also = f"; it is also in {folder / PAGE}" if (folder / PAGE).is_file() else ""
        summary = read_json(results[0])
        is_partial = isinstance(summary, dict) and bool(summary.get("is_partial"))
        ended = "Training was stopped, and goes on by --resume" if is_partial else "Training has ended"
        words = f"{ended}. This page changes no more{also}."
        return Seen(words, False, lambda: with_notice(make_page(folder), words))
    if live is not None:
        last = live.history[-1]
        onward = "Go on by --resume." if any(map(is_checkpoint, parts)) else "There is no checkpoint of it to go on from."
        words = f"Nothing trains here now: it was interrupted after epoch {last.epoch} of {last.epochs}. {onward}"
        if last.epoch >= last.epochs:
            words = "Training has ended. Its result was not saved in this folder, so that this is the last that is known of it."
        return Seen(words, False, lambda: live_page(live, words))
    raise ValueError(
        f"{folder} must be the folder of a run: the --out of symbayes fit or discover, or the checkpoint of sb.fit. "
        f"{'Nothing of a run is in it' if folder.is_dir() else 'There is no such folder'}"
    )


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # gone, or about to be moved there
        return 0.0


@contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """The page of the run in a folder at http://127.0.0.1:port/, and nothing else; on a free port for 0.

    Raises:
        OSError: If the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _WAIT

        def do_GET(self) -> None:
            status, kind, content = _answer(folder, self.path, self.headers.get("Host", ""))
            self.send_response(status)
            headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(content))}
            headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Nothing: the terminal says how it stands with the run."""

    with Server((_HERE, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Server(ThreadingHTTPServer):
    """Says nothing of browsers that hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What else goes wrong is said as usual."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def _answer(folder: Path, path: str, host: str) -> tuple[HTTPStatus, str, bytes]:
    """To a request: its status, and what is sent of which kind."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() not in _NAMES:
        return HTTPStatus.FORBIDDEN, "text/plain", f"This page is for {', '.join(_NAMES)} alone.\n".encode()
    if path.partition("?")[0] != "/":
        return HTTPStatus.NOT_FOUND, "text/plain", b"There is one page here: /\n"
    try:
        return HTTPStatus.OK, "text/html", look(folder).page().encode()
    except (OSError, *DAMAGE) as error:
        return HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", f"{error_words(error)}.\n".encode(errors="replace")


def watch(
    folder: Annotated[Path, typer.Argument(help="Of a run: the --out of fit or discover, or the checkpoint of sb.fit.")],
    port: Annotated[int, typer.Option(help="Of the address; a free one when not said.", min=0, max=65535)] = 0,
) -> None:
    """Show the page of a run while it trains, to browsers on this machine alone; Ctrl-C ends the watching, not the run."""
    try:
        seen = look(folder)
    except (OSError, *DAMAGE) as error:
        raise typer.BadParameter(f"{error_words(error)}.") from error
    with ExitStack() as during:
        try:
            server = during.enter_context(serving(folder, port))
        except OSError as error:
            raise typer.BadParameter(f"--port must be one that is free, got {port}: {error.strerror or error}.") from error
        address = f"http://{_HERE}:{server.server_port}/"
        console.print(f"{address} shows {folder}; Ctrl-C ends this.", highlight=False, markup=False)
        said = ""
        try:
            while True:
                if seen.words != said:
                    said = seen.words
                    console.print(said, highlight=False, markup=False)
                time.sleep(_LOOK)
                seen = _look_again(folder, seen)
        except KeyboardInterrupt:
            goes_on = ", and training goes on" if seen.is_running else ""
            console.print(f"No longer watched{goes_on}.", highlight=False)


def _look_again(folder: Path, before: Seen) -> Seen:
    """How it stands now; as before while that cannot be read."""
    try:
        return look(folder)
    except (OSError, *DAMAGE):
        return before
