"""Garbage collection is suspended as long as a thread needs it, and no longer."""

import gc
import threading

from tvmtarget.garbage_collection import MANY, without_garbage_collection


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


def test_many_objects_that_stay_are_not_visited_once_more():
    gc.unfreeze()  # what `conftest.py` froze
    try:
        with without_garbage_collection():
            kept = [[number] for number in range(MANY + 1000)]
        # A collection of new objects would have made them objects of generation 1.
        assert any(one is kept[0] for one in gc.get_objects(generation=2))
    finally:
        gc.freeze()


def test_objects_that_are_frozen_stay_so():
    gc.freeze()
    before = gc.get_freeze_count()
    with without_garbage_collection():
        kept = [[number] for number in range(MANY + 1000)]
    assert gc.get_freeze_count() > before // 2
    assert not any(one is kept[0] for one in gc.get_objects(generation=2))


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
