"""Saved logins of this user: one file per manager and user."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import click

from herder.app.host.private_files import check_private, write_private


@dataclass(frozen=True, slots=True)
class Login:
    """A saved login."""

    server: str
    user: str
    token: str = field(repr=False)
    expires: str = ""  # RFC 3339; empty if it does not expire
    certificates: str = ""  # PEM; empty if the system's CAs are trusted


def keep(login: Login) -> None:
    write_private(_path(login.server, login.user), json.dumps(asdict(login)))


def find(server: str, user: str, now: datetime) -> Login:
    """The saved login; without a user, the only one of that manager."""
    path = _path(server, user) if user else _only(server)
    try:
        check_private(path)
        login = Login(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise click.ClickException(f"not logged in to {server}; {_advice(server, user)}") from None
    except (ValueError, TypeError):
        raise click.ClickException(f"{path}: invalid login file; {_advice(server, user)}") from None
    if login.expires and datetime.fromisoformat(login.expires) <= now:
        raise click.ClickException(f"the login to {server} has expired; {_advice(server, login.user)}")
    return login


def logins_of(server: str) -> list[Login]:
    """All saved logins to a manager that can be read."""
    found = []
    for path in sorted(_folder(server).glob("*.json")):
        with suppress(ValueError, TypeError):
            found.append(Login(**json.loads(path.read_text())))
    return found


def forget(login: Login) -> None:
    _path(login.server, login.user).unlink(missing_ok=True)


def server_url(text: str) -> str:
    """URL of a manager, from a host name or the URL of a cluster behind it."""
    url = text if "://" in text else f"https://{text}"
    return url.partition("/k8s/clusters/")[0].rstrip("/")


def _only(server: str) -> Path:
    found = sorted(_folder(server).glob("*.json"))
    if len(found) > 1:
        names = ", ".join(unquote(path.stem) for path in found)
        raise click.ClickException(f"several users are logged in to {server}; select one with --user ({names})")
    return found[0] if found else _path(server, "nobody")


def _folder(server: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "herder" / "logins" / quote(urlsplit(server).netloc, safe="")


def _path(server: str, user: str) -> Path:
    return _folder(server) / f"{quote(user, safe='')}.json"


def _advice(server: str, user: str) -> str:
    return f"run: herder login {server}" + (f" -u {user}" if user else "")
