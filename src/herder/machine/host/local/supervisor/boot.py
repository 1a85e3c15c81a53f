"""Boot a machine: its namespaces, its root file system, and its PID 1."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

from herder.engine.runner.shim import kernel
from herder.machine.host.local import locks
from herder.machine.host.local.overlay import overlay_options

_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWNET
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_KUBERNETES_DEVICES = ("kmsg", "fuse", "net/tun")
_DEVICE_LINKS = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_BIND = kernel.MS_BIND | kernel.MS_REC
_READ_ONLY = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
# Host-wide sysctls that the kubelet insists on writing: it gets private files instead.
_PRETENDED_SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
# Container storage cannot be on overlayfs.
_PLAIN_STORAGE = ("var/lib/rancher", "var/lib/containerd", "var/lib/kubelet", "var/lib/etcd")


class Guest:
    """The machine's PID 1: exists when the context is entered, without a root; `go` lets it boot."""

    def __init__(self, config: dict[str, Any], console: str) -> None:
        self._report, report = os.pipe()
        go, self._go = os.pipe()
        stage = os.fork()
        if stage == 0:
            os.close(self._report)
            os.close(self._go)
            _stage(config, console, report, go)
        os.close(report)
        os.close(go)
        self.pid = int(self._line().removeprefix("guest "))
        os.waitpid(stage, 0)  # we are a subreaper, so it becomes our child

    def __enter__(self) -> Guest:
        return self

    def go(self) -> None:
        """Return when /sbin/init runs."""
        os.write(self._go, b"g")
        while line := self._line():
            if line != "bound":
                raise OSError(f"the machine cannot boot: {line}")

    def __exit__(self, *_: object) -> None:
        os.close(self._go)
        os.close(self._report)

    def _line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._report, 1)
            if not byte:
                break
            line += byte
        text = line.decode().strip()
        if text.startswith("error "):
            raise OSError(text.removeprefix("error "))
        return text


def _stage(config: dict[str, Any], console: str, report: int, go: int) -> NoReturn:
    """Intermediate process: only children of a process are in its new PID namespace."""
    try:
        for group in config["groups"]:
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write("0")
        if config["rootless"]:
            kernel.join_namespace(inside_of(config["fabric"]), "user")
        kernel.unshare(_NAMESPACES)
        guest = os.fork()
        if guest == 0:
            _become(config, console, report, go)
        os.write(report, f"guest {guest}\n".encode())
    except (OSError, ValueError) as error:
        os.write(report, f"error {error}\n".encode())
    finally:
        os._exit(0)


def inside_of(fabric: str) -> int:
    """Return the process inside the network namespaces, whose holder has this lock; 0 if there is none."""
    if not locks.holder_of(fabric):
        return 0
    with open(fabric) as file:
        return int(file.read() or 0)


def _become(config: dict[str, Any], console: str, report: int, go: int) -> NoReturn:
    try:
        if not os.read(go, 1):
            os._exit(1)  # the supervisor died
        kernel.die_with_parent(signal.SIGKILL)
        os.write(report, b"bound\n")  # fails if the supervisor died before we were bound to it
        os.setsid()
        out = os.open(console, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.umask(0o022)
        _Root(config).enter()
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        environment = {"container": "herder", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        os.execve("/sbin/init", ["/sbin/init"], environment)  # noqa: S606
    except OSError as error:
        os.write(report, f"error {error}\n".encode())
    finally:
        os._exit(1)


class _Root:
    """The machine's root: image layers, its own upper directory, and mounts that a kernel would provide."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.root = config["root"]

    def enter(self) -> None:
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        self._files()
        self._devices()
        self._tmpfs("run", "mode=755", kernel.MS_NOSUID | kernel.MS_NODEV)
        self._tmpfs("tmp", "mode=1777", kernel.MS_NOSUID | kernel.MS_NODEV)
        self._control_groups()
        self._settings()
        if self.config["kubernetes"]:
            self._plain_storage()
        kernel.pivot_into(self.root)
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SHARED)

    def _files(self) -> None:
        config = self.config
        options = overlay_options(config["lower"], config["upper"], config["work"], rootless=config["rootless"])
        kernel.mount("overlay", self.root, "overlay", data=options)
        kernel.mount("proc", self._place("proc"), "proc", _QUIET)
        kernel.mount("sysfs", self._place("sys"), "sysfs", _QUIET | kernel.MS_RDONLY)

    def _devices(self) -> None:
        self._tmpfs("dev", "mode=755", kernel.MS_NOSUID)
        for directory in ("pts", "shm", "net"):
            self._place(f"dev/{directory}")
        more = _KUBERNETES_DEVICES if self.config["kubernetes"] else ()
        for name in (*_DEVICES, *more):
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{self.root}/dev/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
                kernel.mount(f"/dev/{name}", f"{self.root}/dev/{name}", flags=kernel.MS_BIND)
        kernel.mount("devpts", f"{self.root}/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620,gid=5")
        self._tmpfs("dev/shm", "mode=1777", kernel.MS_NOSUID | kernel.MS_NODEV)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, f"{self.root}/dev/{name}")

    def _control_groups(self) -> None:
        trees = self.config["trees"]
        if [options for _, options in trees] == [""]:
            kernel.mount("cgroup2", self._place("sys/fs/cgroup"), "cgroup2", _QUIET)
            return
        self._tmpfs("sys/fs/cgroup", "mode=755", _QUIET)
        for name, options in trees:
            kind = "cgroup" if options else "cgroup2"
            kernel.mount(kind, self._place(f"sys/fs/cgroup/{name}"), kind, _QUIET, options)
            for controller in name.split(",") if "," in name else ():
                os.symlink(name, f"{self.root}/sys/fs/cgroup/{controller}")

    def _settings(self) -> None:
        """Sysctls of the host are read-only, except those of its own network."""
        settings, network = f"{self.root}/proc/sys", f"{self.root}/proc/sys/net"
        kernel.mount(settings, settings, flags=_BIND)
        kernel.mount(network, network, flags=_BIND)
        kernel.mount("none", settings, flags=_READ_ONLY | _QUIET)
        if self.config["kubernetes"]:
            pretended = self._place("run/herder-settings")
            for name in _PRETENDED_SETTINGS:
                own = f"{pretended}/{name.replace('/', '.')}"
                with open(f"{settings}/{name}") as real, open(own, "w") as file:
                    file.write(real.read())
                kernel.mount(own, f"{settings}/{name}", flags=kernel.MS_BIND)

    def _plain_storage(self) -> None:
        for path in _PLAIN_STORAGE:
            plain = f"{self.config['data']}/{path.replace('/', '-')}"
            os.makedirs(plain, exist_ok=True)
            kernel.mount(plain, self._place(path), flags=_BIND)

    def _tmpfs(self, path: str, options: str, flags: int) -> None:
        kernel.mount("tmpfs", self._place(path), "tmpfs", flags, options)

    def _place(self, path: str) -> str:
        place = f"{self.root}/{path}"
        os.makedirs(place, exist_ok=True)
        return place
