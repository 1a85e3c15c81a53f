"""Images from archives and registries: lookup, digest verification, and unpacking below the root only."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import socketserver
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from herder.agent.images import blobs, layers, reference
from herder.agent.images import registry as images_registry
from herder.agent.images.reference import ImageError
from herder.agent.images.registries import Registries
from herder.engine import certificates
from tests.support.canaries import canary
from tests.support.registry.oci import Image, Link, Registry, digest_of, image, layer, registry
from tests.unit.agent.nodes import StagingNode, image_archive

TOOL = image({"a": "one", "d/b": "two"}, {"a": "three", "d/.wh.b": ""})
PLATFORM = blobs.platform()


@pytest.fixture
def served() -> Iterator[Registry]:
    with registry() as found:
        found.push("team/tool", "v1", TOOL)
        yield found


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagingNode:
    monkeypatch.setenv("HOME", str(tmp_path))
    return StagingNode(tmp_path)


# --- references -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("busybox", ("index.docker.io", "library/busybox", "latest", "")),
        ("rancher/x:v1", ("index.docker.io", "rancher/x", "v1", "")),
        ("docker.io/rancher/x:v1", ("index.docker.io", "rancher/x", "v1", "")),
        ("localhost/x", ("localhost", "x", "latest", "")),
        ("host.test:5000/a/b_c:v1-rc.1", ("host.test:5000", "a/b_c", "v1-rc.1", "")),
        (f"h.test/a@sha256:{'0' * 64}", ("h.test", "a", "", f"sha256:{'0' * 64}")),
    ],
)
def test_image_references_are_parsed(text: str, parts: tuple[str, ...]) -> None:
    assert tuple(reference.parse(text)) == parts


@pytest.mark.parametrize("text", ["", "UPPER/x", "a:b c", "h.test/../x", "x@sha256:12", "a//b", "x:"])
def test_invalid_references_are_rejected(text: str) -> None:
    with pytest.raises(ImageError, match="image"):
        reference.parse(text)


# --- archives -------------------------------------------------------------------------------------------------------


def compressed_by(program: str) -> Callable[[bytes], bytes]:
    return lambda content: subprocess.run([program, "-c"], input=content, capture_output=True, check=True).stdout


ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "x.tar": bytes,
    "x.tar.gz": gzip.compress,
    "x.tgz": gzip.compress,
    "x.tar.bz2": bz2.compress,
    "x.tar.zst": compressed_by("zstd"),
    "x.tar.lz4": compressed_by("lz4"),
}


@pytest.mark.parametrize("layout", ["docker", "oci"])
@pytest.mark.parametrize("name", ARCHIVES)
def test_an_image_is_found_in_every_archive_format(node: StagingNode, name: str, layout: str) -> None:
    (node.images / name).write_bytes(ARCHIVES[name](image_archive(TOOL, layout, "h.test/a:v1")))
    assert node.stage("h.test/a:v1") == {"a": "three"}


def test_an_archive_is_found_by_digest(node: StagingNode) -> None:
    (node.images / "x.tar").write_bytes(TOOL.oci_archive("h.test/a:v1"))
    assert node.stage(f"h.test/a@{TOOL.manifest}") == {"a": "three"}


def test_a_missing_decompressor_is_named(node: StagingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.images / "x.tar.zst").write_bytes(ARCHIVES["x.tar.zst"](TOOL.docker_archive("h.test/a:v1")))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ImageError, match="install zstd"):
        node.stage("h.test/a:v1")


def test_an_archive_with_a_corrupt_layer_is_rejected(node: StagingNode) -> None:
    content = TOOL.docker_archive("h.test/a:v1").replace(b"three", b"thref")
    (node.images / "x.tar").write_bytes(content)
    with pytest.raises(ImageError, match="digest of its content"):
        node.stage("h.test/a:v1")


def test_hidden_files_and_other_file_types_are_ignored(node: StagingNode, served: Registry) -> None:
    (node.images / ".x.tar").write_bytes(b"junk")
    (node.images / "x.txt").write_bytes(b"junk")
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}


# --- registries -----------------------------------------------------------------------------------------------------


def test_an_image_is_pulled_by_tag_and_by_digest(node: StagingNode, served: Registry) -> None:
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}
    assert node.stage(f"{served.host}/team/tool@{TOOL.manifest}") == {"a": "three"}


def test_the_image_for_this_platform_is_chosen_from_an_index(node: StagingNode, served: Registry) -> None:
    served.push("team/many", "v1", TOOL, index=TOOL.index(os="linux", architecture=PLATFORM))
    served.push("team/other", "v1", TOOL, index=TOOL.index(os="plan9", architecture="mips"))
    assert node.stage(f"{served.host}/team/many:v1") == {"a": "three"}
    with pytest.raises(ImageError, match=f"nothing for linux/{PLATFORM}, only plan9/mips"):
        node.stage(f"{served.host}/team/other:v1")


@pytest.mark.parametrize("scheme", ["basic", "bearer"])
@pytest.mark.parametrize("layout", ["pair", "encoded", "docker"])
def test_credentials_are_sent_to_the_registry_only(
    node: StagingNode, served: Registry, scheme: str, layout: str, tmp_path: Path
) -> None:
    served.credentials, served.scheme = ("robot", canary("registry")), scheme
    encoded = served.basic().split()[1]
    if layout == "docker":
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker" / "config.json").write_text(json.dumps({"auths": {served.host: {"auth": encoded}}}))
    else:
        auth = {"auth": encoded} if layout == "encoded" else {"username": "robot", "password": canary("registry")}
        node.configure_registries(configs={served.host: {"auth": auth}})
    assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}


def test_missing_credentials_are_reported(node: StagingNode, served: Registry) -> None:
    served.credentials, served.scheme = ("robot", canary("registry")), "basic"
    with pytest.raises(ImageError, match="wants a password, and registries"):
        node.stage(f"{served.host}/team/tool:v1")


def test_redirects_to_blobs_are_followed(node: StagingNode, served: Registry) -> None:
    with registry() as elsewhere:
        elsewhere.blobs = served.blobs
        served.redirect_blobs_to = elsewhere.url
        assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}
        assert elsewhere.requests


@pytest.mark.parametrize("key", ["h.test", "*"])
def test_mirrors_are_tried_in_order_with_the_rewritten_name(node: StagingNode, served: Registry, key: str) -> None:
    mirror = {"endpoint": ["http://127.0.0.1:1", served.url], "rewrite": {"^old/(.*)$": "team/$1"}}
    node.configure_registries(mirrors={key: mirror})
    assert node.stage("h.test/old/tool:v1") == {"a": "three"}
    assert [line.rpartition(" ")[2] for line in node.log if line.startswith("looking")] == [
        "http://127.0.0.1:1/v2",
        f"{served.url}/v2",
    ]


def test_a_missing_image_reports_the_error_of_every_endpoint(node: StagingNode, served: Registry) -> None:
    node.configure_registries(mirrors={served.host: {"endpoint": ["http://127.0.0.1:1"]}})
    with pytest.raises(ImageError) as found:
        node.stage(f"{served.host}/team/none:v1")
    assert "127.0.0.1:1: ConnectionRefusedError" in str(found.value)
    assert "404 no such image" in str(found.value)


INVALID_RESPONSES = {
    "redirect to no address": (302, {"Location": "https://[bad"}, b""),
    "redirect to no port": (302, {"Location": "http://127.0.0.1:x/"}, b""),
    "redirect to a port too high": (302, {"Location": "http://127.0.0.1:99999999/"}, b""),
    "realm that is no address": (401, {"WWW-Authenticate": 'Bearer realm="https://[bad"'}, b""),
    "realm with a space": (401, {"WWW-Authenticate": 'Bearer realm="http://a b/"'}, b""),
    "token of two lines": (401, {}, b'{"token": "a\\nb"}'),
    "token of another alphabet": (401, {}, '{"token": "\u20ac"}'.encode()),
}


@pytest.mark.parametrize("response", INVALID_RESPONSES.values(), ids=INVALID_RESPONSES.keys())
def test_a_mirror_with_invalid_responses_is_skipped(
    node: StagingNode, served: Registry, monkeypatch: pytest.MonkeyPatch, response: tuple[int, dict[str, str], bytes]
) -> None:
    with registry() as invalid:
        status, headers, body = response
        challenge = {"WWW-Authenticate": f'Bearer realm="{invalid.url}/token"'} if status == 401 and not headers else {}
        monkeypatch.setattr(
            invalid,
            "answer",
            lambda path, _: (200, {}, body) if "/token" in path else (status, headers | challenge, b""),
        )
        node.configure_registries(mirrors={served.host: {"endpoint": [invalid.url]}})
        assert node.stage(f"{served.host}/team/tool:v1")


def test_a_mirror_with_corrupt_blobs_is_skipped(node: StagingNode, served: Registry) -> None:
    with registry() as corrupt:
        corrupt.push("team/tool", "v1", TOOL)
        corrupt.blobs = {digest: content[:-1] + b"?" for digest, content in corrupt.blobs.items()}
        node.configure_registries(mirrors={served.host: {"endpoint": [corrupt.url]}})
        assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}
        assert corrupt.requests


def test_a_mirror_with_a_damaged_image_is_skipped(node: StagingNode, served: Registry) -> None:
    with registry() as damaged:
        damaged.push("team/tool", "v1", Image([b"no tar at all" * 100]))
        node.configure_registries(mirrors={served.host: {"endpoint": [damaged.url]}})
        assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}


@pytest.mark.parametrize("slow_from", [b"HTTP", b"Content-Length", b"\r\n\r\n"], ids=["status", "header", "body"])
def test_a_mirror_that_sends_without_end_is_skipped(
    node: StagingNode, served: Registry, monkeypatch: pytest.MonkeyPatch, slow_from: bytes
) -> None:
    """Each byte arrives within the timeout, but the response never ends."""
    monkeypatch.setattr(images_registry, "_TIMEOUT", 2.0)
    monkeypatch.setattr(images_registry, "_SLOWEST", 1 << 40)
    with slow_server(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", slow_from) as url:
        node.configure_registries(mirrors={served.host: {"endpoint": [url]}})
        assert node.stage(f"{served.host}/team/tool:v1") == {"a": "three"}


@contextmanager
def slow_server(answer: bytes, slow_from: bytes) -> Iterator[str]:
    ended = threading.Event()
    head = answer[: answer.index(slow_from)]
    rest = answer[len(head) :] if slow_from != b"HTTP" else b""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(head)
            slow_bytes = itertools.chain(rest, itertools.repeat(ord("x")))
            with suppress(OSError):
                while not ended.wait(0.05):
                    self.request.sendall(bytes([next(slow_bytes)]))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ended.set()
            server.shutdown()


def test_a_manifest_with_another_digest_is_rejected(node: StagingNode, served: Registry) -> None:
    other = digest_of(b"other")
    served.manifests["team/tool", other] = served.manifests["team/tool", "v1"]
    with pytest.raises(ImageError, match=f"and {other} was asked for"):
        node.stage(f"{served.host}/team/tool@{other}")


def test_tls_uses_the_configured_ca_or_skips_verification(node: StagingNode, tmp_path: Path) -> None:
    now, life = datetime.now(UTC), timedelta(days=1)
    signer = certificates.authority("an authority", now=now, life=life)
    pair = certificates.serving(signer, "a registry", ["127.0.0.1"], now=now, life=life)
    for name, content in (("ca", signer.certificate_pem), ("cert", pair.certificate_pem), ("key", pair.key_pem)):
        (tmp_path / name).write_bytes(content)
    with registry(certificate=tmp_path / "cert", key=tmp_path / "key") as secure:
        secure.push("team/tool", "v1", TOOL)
        mirrors = {"h.test": {"endpoint": [secure.url]}}
        node.configure_registries(mirrors=mirrors)
        with pytest.raises(ImageError, match="CERTIFICATE_VERIFY_FAILED"):
            node.stage("h.test/team/tool:v1")
        for tls in ({"ca_file": str(tmp_path / "ca")}, {"insecure_skip_verify": True}):
            node.configure_registries(mirrors=mirrors, configs={secure.host: {"tls": tls}})
            assert node.stage("h.test/team/tool:v1") == {"a": "three"}
        with registry() as plain:
            secure.push("team/other", "v1", image({"b": "1"}))
            secure.redirect_blobs_to = plain.url
            with pytest.raises(ImageError, match="which is without TLS"):
                node.stage("h.test/team/other:v1")
            auth = {"username": "shepherd", "password": canary("registry")}
            node.configure_registries(mirrors=mirrors, configs={secure.host: {"tls": tls, "auth": auth}})
            secure.credentials, secure.url = ("shepherd", auth["password"]), plain.url
            with pytest.raises(ImageError, match="credentials are not sent there"):
                node.stage("h.test/team/other:v1")
            assert plain.requests == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"mirrors": []}, "mirrors must have registries as keys"),
        ({"mirrors": {"h.test": [1]}}, "mirrors.h.test must have keys and values"),
        ({"mirrors": {"h.test": {"endpoint": ["x"], "rewrite": {"(": "y"}}}}, "no regular expression"),
        ({"configs": {"h.test": {"tls": {"cert_file": "x"}}}}, "needs both cert_file and key_file"),
        ({"configs": {"h.test": {"auth": {"auth": "?"}}}}, "configs.h.test.auth.auth must be base64 of user:password"),
        ({"configs": {"h.test": {"auth": {"password": True}}}}, "configs.h.test.auth.password must be text"),
    ],
)
def test_an_invalid_registries_file_names_the_field(content: dict[str, object], message: str) -> None:
    with pytest.raises(ImageError, match=message):
        Registries(content).endpoints(reference.parse("h.test/a:v1"))


# --- layers ---------------------------------------------------------------------------------------------------------


def unpack(root: Path, *contents: dict[str, bytes | str | Link | None]) -> None:
    for each in contents:
        layers.unpack(io.BytesIO(layer(each)), str(root))


def test_layers_are_applied_in_order(tmp_path: Path) -> None:
    unpack(
        tmp_path,
        {"a": "1", "d/x": "1", "d/y": "1", "o/old": "1", "f": "1", "sub": None},
        {
            "a": "2",
            "d/.wh.x": "",
            "o/.wh..wh..opq": "",
            "o/new": "2",
            "f/inside": "2",
            "l": Link("a"),
            "h": Link("a", True),
        },
    )
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("a", "d", "d/y", "f", "f/inside", "h", "l", "o", "o/new", "sub"),
    ]
    assert (tmp_path / "l").read_text() == (tmp_path / "h").read_text() == "2"


@pytest.mark.parametrize(
    "contents",
    [
        [{"../x": "no"}],
        [{"a/../../x": "no"}],
        [{"up": Link(".."), "up/x": "no"}],
        [{"out": Link("/"), "out/x": "no"}],
        [{"out": Link("{outside}"), "out/x": "no"}],
        [{"a": Link("b"), "b": Link("a"), "a/x": "no"}],
        [{"x": Link("../../secret", True)}],
        [{"file": Link("{outside}/x")}, {"file": "no"}],
    ],
    ids=["dots", "dots inside", "by a link up", "by a link to the root", "by a link", "circle", "hard", "over a link"],
)
def test_nothing_is_written_outside_of_the_root(tmp_path: Path, contents: list[dict[str, object]]) -> None:
    root, outside = tmp_path / "deep" / "root", tmp_path / "outside"
    root.mkdir(parents=True)
    outside.mkdir()
    for each in contents:
        files = {
            name: Link(value.target.replace("{outside}", str(outside)), value.hard)
            if isinstance(value, Link)
            else value
            for name, value in each.items()
        }
        try:
            unpack(root, files)  # type: ignore[arg-type]
        except (ImageError, OSError):
            continue
    assert list(outside.iterdir()) == []
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["root"]
    assert not Path("/x").exists()


def test_modes_are_kept_without_setuid_bits(tmp_path: Path) -> None:
    layers.unpack(io.BytesIO(layer({"run.sh": "x"}, mode=0o4777)), str(tmp_path))
    layers.unpack(io.BytesIO(layer({"none": "x"}, mode=0)), str(tmp_path))
    assert [oct((tmp_path / name).stat().st_mode & 0o7777) for name in ("run.sh", "none")] == ["0o755", "0o755"]


def test_devices_are_skipped(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("null")
        member.type = tarfile.CHRTYPE
        archive.addfile(member)
    layers.unpack(io.BytesIO(packed.getvalue()), str(tmp_path))
    assert list(tmp_path.iterdir()) == []
