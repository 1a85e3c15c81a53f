"""A client-go program: protobuf bodies out, a shared informer that lists by WatchList."""

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
    assert done.stderr == ""  # client-go says there when it has to fall back from WatchList or protobuf
