"""A small server that speaks what `huggingface_hub` asks of the hub: models, their files, ranges of them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """Models by name: folders. ``gated`` ones want ``token``, and so does whoever writes. ``pushed``: files of commits
    by name. ``asked``: (method, path, range) of each request."""

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.token = "hf_right"
        self.pushed: dict[str, dict[str, bytes]] = {}
        self.asked: list[tuple[str, str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub._answer(self, "HEAD")

            def do_GET(self) -> None:
                hub._answer(self, "GET")

            def do_POST(self) -> None:
                hub._written(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def revision(self, name: str) -> str:
        """The newest commit of a model."""
        return hashlib.sha1(name.encode()).hexdigest()

    def _answer(self, request: BaseHTTPRequestHandler, method: str) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append((method, path, request.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        folder = self.models.get(name)
        if folder is None:
            return self._error(request, 404, "RepoNotFound")
        if name in self.gated and request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._error(request, 403, "GatedRepo")
        revision = (parts[5] if len(parts) > 5 else "main") if api else parts[3]
        if revision not in ("main", self.revision(name)):
            return self._error(request, 404, "RevisionNotFound")
        if api:
            return self._listed(request, name, folder, parts[4] if len(parts) > 4 else "")
        file = folder / "/".join(parts[4:])
        if not file.is_file():
            return self._error(request, 404, "EntryNotFound")
        return self._file(request, method, name, file)

    def _written(self, request: BaseHTTPRequestHandler) -> None:
        """A model is made, or files come: what will come, then a commit of lines of JSON."""
        path = unquote(urlsplit(request.path).path)
        self.asked.append(("POST", path, ""))
        body = _body(request)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return self._error(request, 403, "Forbidden")
        answer: Any = {}
        if path == "/api/repos/create":
            made = json.loads(body)
            name = f"{made.get('organization') or 'me'}/{made['name']}"
            self.pushed.setdefault(name, {})
            answer = {"url": f"{self.url}/{name}"}
            assert made.get("private") or made.get("visibility") == "private", made
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            answer = {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
        elif "/commit/" in path:
            name = "/".join(path.split("/")[3:5])
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.pushed[name][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"{self.url}/{name}/commit/1", "commitOid": self.revision(name)}
        else:
            answer = {"type": "valid"}
        return self._send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _listed(self, request: BaseHTTPRequestHandler, name: str, folder: Path, what: str) -> None:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        answer: Any = [
            {"type": "file", "path": one.name, "size": one.stat().st_size, "oid": _oid(one)} for one in files
        ]
        if what != "tree":
            siblings = [{"rfilename": one.name} for one in files]
            answer = {"id": name, "modelId": name, "sha": self.revision(name), "siblings": siblings, "tags": []}
        self._send(request, 200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _file(self, request: BaseHTTPRequestHandler, method: str, name: str, file: Path) -> None:
        data = file.read_bytes()
        large = file.suffix == ".safetensors"
        etag = hashlib.sha256(data).hexdigest() if large else _oid(file)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.revision(name), "Accept-Ranges": "bytes"}
        if large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        status, start = 200, 0
        if (wanted := request.headers.get("Range", "")).startswith("bytes="):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(request, status, data[start:], headers, method == "HEAD")

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str],
        head: bool = False,
    ) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        if head:
            return
        with contextlib.suppress(OSError):
            request.wfile.write(data)

    def _error(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        self._send(request, status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}, request.command == "HEAD")


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """Whole, or in chunks."""
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


def _oid(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub while the block runs."""
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()
