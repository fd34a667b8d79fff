"""Error classes: which built-in classes they derive from, so that other code catches them as usual."""

import pickle

import pytest
from pydantic import BaseModel, ValidationError

from tvmtarget import Target, errors
from tvmtarget.errors import (
    ArgumentError,
    ArtifactError,
    BackendError,
    CapacityError,
    CompileError,
    FileError,
    InfeasibleError,
    LogError,
    MemoryTooSmallError,
    MissingExtraError,
    ModelError,
    ModelFileError,
    NewerLogError,
    ReadOnlyLogError,
    RunError,
    TargetError,
    TargetFileError,
    TextError,
    TvmTargetError,
    UnknownNameError,
)
from tvmtarget.tags.registry import default_registry
from tvmtarget.target.node import Link, Node

ALSO = {
    TvmTargetError: (Exception,),
    ArgumentError: (ValueError, TypeError),
    TextError: (ValueError,),
    UnknownNameError: (ValueError, KeyError),
    TargetError: (ValueError,),
    ModelError: (ValueError,),
    InfeasibleError: (ValueError,),
    CapacityError: (ValueError, InfeasibleError),
    MemoryTooSmallError: (ValueError, InfeasibleError),
    BackendError: (RuntimeError,),
    CompileError: (RuntimeError, BackendError),
    RunError: (ValueError, RuntimeError),
    FileError: (ValueError,),
    ArtifactError: (ValueError,),
    LogError: (ValueError,),
    NewerLogError: (ValueError,),
    ReadOnlyLogError: (ValueError,),
    TargetFileError: (ValueError, FileError, TargetError),
    ModelFileError: (ValueError, FileError, ModelError),
    MissingExtraError: (ImportError,),
}


def _exported():
    named = (getattr(errors, name) for name in errors.__all__)
    return {one for one in named if isinstance(one, type) and issubclass(one, TvmTargetError)}


def test_the_table_has_every_class():
    assert set(ALSO) == _exported()


@pytest.mark.parametrize("error", sorted(ALSO, key=lambda error: error.__name__), ids=lambda error: error.__name__)  # type: ignore[attr-defined]
def test_an_error_is_also_a_built_in_one(error):
    made = error("onnx", "all") if error is MissingExtraError else error("it's 'x'; did you mean 'y'?")
    for also in ALSO[error]:
        assert isinstance(made, also)
    assert isinstance(made, ValueError) == (ValueError in ALSO[error])
    assert str(made) == "\n".join(made.problems)  # a KeyError would put it in quotes
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.problems, str(again)) == (error, made.problems, str(made))


def test_a_bad_target_is_a_value_error():
    for text in ("cudda", "cuda(arch=sm_1)", "cuda(", "nvidia/none", "cuda(bad=1)"):
        with pytest.raises(ValueError, match=r"\w"):
            Target.parse(text)


def test_an_unknown_tag_is_a_key_error_of_a_mapping():
    tags = default_registry()
    assert tags.get("acme/none") is None
    with pytest.raises(KeyError):
        tags["acme/none"]


class _Pair(Node):
    name: str
    other: str

    def model_post_init(self, _context):
        errors.raise_all(TargetError, [f"{self.name!r} is one", f"{self.other!r} is another"])


def test_the_error_of_a_check_passes_through_pydantic_as_it_is():
    with pytest.raises(TargetError) as caught:
        _Pair(name="a", other="b")
    assert caught.value.problems == ("'a' is one", "'b' is another")
    with pytest.raises(TargetError, match="'latency_ns' of a link is a whole number, not 'fast'"):
        Link(src="a", dst="b", latency_ns="fast")


def test_in_a_foreign_model_errors_are_those_of_pydantic():
    class Job(BaseModel):
        pair: _Pair

    with pytest.raises(ValidationError) as caught:
        Job.model_validate({"pair": {"name": "a", "other": "b"}})
    assert caught.value.errors()[0]["loc"] == ("pair",)
