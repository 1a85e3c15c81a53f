"""A client-go program: writes protobuf, and reads with a shared informer that uses WatchList."""

from tests.interop.programs import run
from tests.support.api import Api
from tests.support.engines import Engine

EXPECTED = """\
groups true
added watched
updated watched fe
stale update refused true
deleted watched
job 64Mi 6
list true true
done
"""


async def test_client_go_informer_sees_each_change_and_writes_protobuf(engine: Engine, api: Api) -> None:
    done = run(engine, "informer", "--kubeconfig", engine.kubeconfig, "--namespace", api.namespace)
    assert done.stdout == EXPECTED
    assert done.stderr == ""  # client-go logs there if it falls back from WatchList or protobuf
