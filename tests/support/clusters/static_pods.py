"""A kubeadm server without its kubelet: a real etcd whose process follows its manifest, as a static pod does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.kube import Authority, free_port
from tests.support.peers import peer

NODE = "server-1"


class StaticPodServer:
    """A manifest is the JSON list of a command. It runs while the file exists in `manifests`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "etcd"
        self.manifests = directory / "manifests"
        self.aside = directory / "stopped"
        self.manifests.mkdir(parents=True)
        self.endpoint = f"https://127.0.0.1:{free_port()}"
        self.peer_url = f"https://127.0.0.1:{free_port()}"
        authority = Authority(directory / "pki")
        self.ca = authority.path
        self.cert, self.key = authority.issue("etcd", server=True)
        self.pods: dict[str, subprocess.Popen[bytes]] = {}
        self.starts = {"etcd": 0, "kube-apiserver": 0}
        self._ended = threading.Event()
        self._kubelet = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> StaticPodServer:
        self._write("etcd", self._etcd())
        # The stand-in has the name and the flag that identify an API server of this etcd.
        idle = "import time; time.sleep(3600)"
        self._write("kube-apiserver", [sys.executable, "-c", idle, f"--etcd-servers={self.endpoint}"])
        self._kubelet.start()
        self.wait(lambda: self.etcdctl("endpoint", "health", check=False)[0] == 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._kubelet.join()
        for pod in self.pods.values():
            pod.kill()
            pod.wait()

    def settings(self) -> dict[str, Any]:
        """The section `kubeadm` of the configuration."""
        return {
            "name": NODE,
            "peerUrl": self.peer_url,
            "endpoint": self.endpoint,
            "etcdctl": str(peer("etcdctl")),
            "etcdutl": str(peer("etcdutl")),
            "ca": str(self.ca),
            "cert": str(self.cert),
            "key": str(self.key),
            "dataDirectory": str(self.data),
            "manifests": str(self.manifests),
            "stoppedManifests": str(self.aside),
            "timeout": 60,
        }

    def etcdctl(self, *words: str, check: bool = True) -> tuple[int, str]:
        tls = [f"--cacert={self.ca}", f"--cert={self.cert}", f"--key={self.key}", f"--endpoints={self.endpoint}"]
        done = subprocess.run(
            [peer("etcdctl"), *tls, "--command-timeout=5s", *words], capture_output=True, text=True, check=False
        )
        assert not check or done.returncode == 0, done.stderr
        return done.returncode, done.stdout

    def put(self, key: str, value: str) -> None:
        self.etcdctl("put", key, value)

    def values(self) -> dict[str, str]:
        lines = self.etcdctl("get", "", "--from-key")[1].split("\n")
        return dict(zip(lines[0:-1:2], lines[1:-1:2], strict=True))

    def status(self) -> dict[str, Any]:
        """Revision, and cluster and member ID."""
        header: dict[str, Any] = json.loads(self.etcdctl("endpoint", "status", "-w", "json")[1])[0]["Status"]["header"]
        return header

    def running(self) -> set[str]:
        return {name for name, pod in self.pods.items() if pod.poll() is None}

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, (self.directory / "etcd.log").read_text()[-3000:]
            time.sleep(0.1)

    def _etcd(self) -> list[str]:
        tls = {"cert-file": self.cert, "key-file": self.key, "trusted-ca-file": self.ca}
        flags = {
            "name": NODE,
            "data-dir": self.data,
            "listen-client-urls": self.endpoint,
            "advertise-client-urls": self.endpoint,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": f"{NODE}={self.peer_url}",
            "client-cert-auth": "true",
            **tls,
            **{f"peer-{name}": value for name, value in tls.items()},
            "unsafe-no-fsync": "true",
        }
        return [str(peer("etcd")), *(f"--{name}={value}" for name, value in flags.items())]

    def _write(self, name: str, command: list[str]) -> None:
        (self.manifests / f"{name}.yaml").write_text(json.dumps(command))

    def _run(self) -> None:
        """Do what the kubelet does: start the pods of present manifests, end those of absent ones."""
        while not self._ended.wait(0.05):
            for name in self.starts:
                manifest, pod = self.manifests / f"{name}.yaml", self.pods.get(name)
                runs = pod is not None and pod.poll() is None
                if manifest.exists() and not runs:
                    self._start(name, manifest)
                elif not manifest.exists() and runs and pod is not None:
                    pod.terminate()
                    pod.wait()

    def _start(self, name: str, manifest: Path) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            try:
                command = json.loads(manifest.read_text())
            except FileNotFoundError:
                return
            self.pods[name] = subprocess.Popen([name, *command[1:]], executable=command[0], stdout=log, stderr=log)
            self.starts[name] += 1
