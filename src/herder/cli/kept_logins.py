"""Logins of this user that kubectl can use: one file each, by manager and by who logged in there."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import click

from herder.cli.private_files import check_private, write_private


@dataclass(frozen=True, slots=True)
class Login:
    server: str
    user: str
    token: str = field(repr=False)
    expires: str = ""  # RFC 3339; empty: never
    certificates: str = ""  # PEM; empty where the system's are trusted


def keep(login: Login) -> None:
    write_private(_path(login.server, login.user), json.dumps(asdict(login)))


def find(server: str, user: str, now: datetime) -> Login:
    """Without a user: the only one who is logged in there."""
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


def server_url(text: str) -> str:
    """A manager's address as it is kept: also from a host alone, and from the address of a cluster behind it."""
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
