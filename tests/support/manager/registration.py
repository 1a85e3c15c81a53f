"""What `herder import` prints."""

from __future__ import annotations

from typing import NamedTuple


class Registration(NamedTuple):
    """The registration of an imported cluster."""

    command: str  # to run in the cluster
    url: str  # of the agent's manifest
    checksum: str

    @property
    def server(self) -> str:
        return self.url.partition("/v3/")[0]

    @property
    def token(self) -> str:
        return self.url.rpartition("/")[2].partition("_")[0]

    @property
    def cluster(self) -> str:
        """ID of the management Cluster."""
        return self.url.rpartition("_")[2].removesuffix(".yaml")


def printed_registration(output: str) -> Registration:
    url = next(word for word in output.split() if "/v3/import/" in word)
    command = next(line.strip() for line in output.splitlines() if "/v3/import/" in line)
    return Registration(command, url, output.split()[-1])
