"""A small stand-in for the Hugging Face Hub's HTTP interface, on this machine."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# files that it stores as Git LFS objects
LARGE = (".safetensors", ".h5", ".npz", ".onnx")


class HubStub(ThreadingHTTPServer):
    """Repositories in memory: the files of each commit by the repository's path on the Hub,
    "models/OWNER/NAME" or "datasets/OWNER/NAME"; the last commit is main."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.objects: dict[str, bytes] = {}
        # METHOD path of each request
        self.requests: list[str] = []

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Add files to a repository. Returns the commit."""
        commits = self.repos.setdefault(repo, {})
        content = {**(list(commits.values())[-1] if commits else {}), **files}
        digest = hashlib.sha1(repr((repo, len(commits), sorted(content.items()))).encode())
        commits[digest.hexdigest()] = content
        return digest.hexdigest()

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a commit or of main."""
        commits = self.repos[repo]
        return list(commits.values())[-1] if revision == "main" else commits[revision]


class _Handler(BaseHTTPRequestHandler):
    server: HubStub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._answer(self._body())

    do_PUT = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"{self.command} {path}")
        for pattern, reply in _ROUTES:
            if parts := re.fullmatch(pattern, path):
                return reply(self, body, *parts.groups())
        return self.send(404, {"error": "no such page"})

    def send(self, code: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self) -> None:
        self.send(404, {"error": "missing"}, {"X-Error-Code": "RepoNotFound"})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        owner = asked.get("organization") or "owner"
        self.server.repos.setdefault(f"{asked.get('type', 'model')}s/{owner}/{asked['name']}", {})
        self.send(200, {"url": f"{self.server.url}/{owner}/{asked['name']}"})

    def validate(self, body: bytes) -> None:
        self.send(200, {"errors": [], "warnings": []})

    def whoami(self, body: bytes) -> None:
        self.send(200, {"name": "owner", "type": "user"})

    def preupload(self, body: bytes, repo: str) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self.send(200, {"files": modes})

    def batch(self, body: bytes) -> None:
        objects = [
            entry | {"actions": {"upload": {"href": f"{self.server.url}/objects/{entry['oid']}"}}}
            for entry in json.loads(body)["objects"]
        ]
        self.send(200, {"transfer": "basic", "objects": objects})

    def put(self, body: bytes, oid: str) -> None:
        self.server.objects[oid] = body
        self.send(200, {})

    def commit(self, body: bytes, repo: str) -> None:
        files = {}
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
        oid = self.server.commit(repo, files)
        url = f"{self.server.url}/{repo.removeprefix('models/')}/commit/{oid}"
        self.send(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def info(self, body: bytes, repo: str, revision: str) -> None:
        commits = self.server.repos.get(repo)
        if not commits or (revision != "main" and revision not in commits):
            return self.missing()
        sha = list(commits)[-1] if revision == "main" else revision
        name = repo.partition("/")[2]
        self.send(200, {"id": name, "sha": sha, "private": False, "tags": [], "siblings": []})

    def tree(self, body: bytes, repo: str, revision: str) -> None:
        listed = []
        for name, content in self.server.files(repo, revision).items():
            entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content)}
            entry["oid"] = hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()
            if name.endswith(LARGE):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            listed.append(entry)
        self.send(200, listed)

    def resolve(self, body: bytes, prefix: str | None, repo: str, revision: str, name: str) -> None:
        files = self.server.files(f"{prefix or 'models/'}{repo}", revision)
        etag = hashlib.sha256(files[name]).hexdigest()
        self.send(200, files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": revision})


_REPO = r"((?:models|datasets)/[^/]+/[^/]+)"
_ROUTES: list[tuple[str, Any]] = [
    (r"/api/repos/create", _Handler.create),
    (r"/api/validate-yaml", _Handler.validate),
    (r"/api/whoami-v2", _Handler.whoami),
    (rf"/api/{_REPO}/preupload/main", _Handler.preupload),
    (r"/.+\.git/info/lfs/objects/batch", _Handler.batch),
    (r"/objects/(\w+)", _Handler.put),
    (rf"/api/{_REPO}/commit/main", _Handler.commit),
    (rf"/api/{_REPO}/revision/(\w+)", _Handler.info),
    (rf"/api/{_REPO}/tree/(\w+)", _Handler.tree),
    (r"/(datasets/)?([^/]+/[^/]+)/resolve/(\w+)/(.+)", _Handler.resolve),
]


@contextmanager
def serving_hub() -> Iterator[HubStub]:
    """The stand-in, on a free port."""
    with HubStub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
