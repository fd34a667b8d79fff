"""Garbage collection is suspended as long as a thread needs it, and no longer."""

import gc
import threading

from tvmtarget.garbage_collection import without_garbage_collection


def test_collection_is_as_before_after_nested_blocks():
    assert gc.isenabled()
    with without_garbage_collection():
        with without_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_that_was_off_stays_off():
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_several_threads_resumes_collection():
    entered, leave = threading.Event(), threading.Event()

    def other():
        with without_garbage_collection():
            entered.set()
            leave.wait()

    with without_garbage_collection():
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
