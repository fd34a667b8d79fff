"""Who may talk to a Dask cluster: only those with its key, and to ours only from this machine."""

import os
import socket
import stat
import urllib.error
import urllib.request

import psutil
import pytest
from clusters_of_machines import TREE, built

pytest.importorskip("onnxruntime", reason="pip install tvmtarget[onnxruntime]")
distributed = pytest.importorskip("distributed", reason="pip install tvmtarget[dask]")


@pytest.fixture(scope="module")
def group():
    """return the worker group of a program that runs on workers of this machine."""
    exe, inputs = built(f"{TREE}(runtime=dask)")
    before = dict(os.environ)
    exe.run(inputs)
    assert dict(os.environ) == before
    yield exe._engine._workers
    exe.close()


def listening():
    """Return the addresses at which this process and its children listen."""
    own = psutil.Process()
    found = [c.laddr for one in (own, *own.children(recursive=True)) for c in one.net_connections(kind="tcp")
             if c.status == psutil.CONN_LISTEN]  # fmt: skip
    assert found
    return found


def test_our_cluster_listens_on_this_machine_only_shows_nothing_and_takes_nobody_without_its_key(group):
    address = group.client.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    assert {place.ip for place in listening()} <= {"127.0.0.1", "::1"}
    for place in listening():
        for page in ("/", "/health"):
            with pytest.raises((urllib.error.URLError, OSError, ValueError)) as refused:
                urllib.request.urlopen(f"http://{place.ip}:{place.port}{page}", timeout=0.5)
            assert getattr(refused.value, "code", 404) == 404
    for scheme, security in (("tcp", None), ("tls", distributed.Security.temporary())):
        with pytest.raises((OSError, TypeError, ValueError)):
            distributed.Client(address.replace("tls", scheme), security=security, timeout=1, set_as_default=False)


def test_a_silent_connection_to_our_cluster_holds_up_nobody(group):
    host, port = group.client.scheduler.address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port))):
        assert group.client.run(os.getpid)


def test_the_folder_of_our_cluster_is_private_and_goes_with_it(group):
    folder = group.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(folder.iterdir())
    group.close()
    assert not folder.exists()
