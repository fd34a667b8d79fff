"""Reference inputs and outputs that are stored with a program, for a comparison where it runs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tvmtarget.backends.protocol import Array
from tvmtarget.building.output_comparison import Comparison, Tolerance, compare
from tvmtarget.errors import ArtifactError, raise_all
from tvmtarget.files import write_arrays
from tvmtarget.untrusted import read_arrays

__all__ = ["SelfTest"]

_INPUTS, _OUTPUTS = "self-test/inputs.npz", "self-test/outputs.npz"
_NUMBERS = "biufc"  # kinds of numpy's element types that an .npz file holds as they are


@dataclass(frozen=True)
class SelfTest:
    """Inputs of a program and the outputs of a reference for them.

    Attributes:
        inputs: Arrays by the name of the input.
        outputs: Arrays by the name of the output.
        reference: What computed the outputs, such as `numpy`.
        halves: The types of half precision that outputs are computed from, as `halves_of_outputs` returns them.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    reference: str
    halves: Mapping[str, str] = field(default_factory=dict)

    def compare(self, outputs: Mapping[str, object], tolerance: Tolerance | None = None) -> Comparison:
        """Compare the outputs of the program for `inputs` with those of the reference.

        Args:
            outputs: What `Executable.run` returned.
            tolerance: How far outputs may be apart; by default that of their data types.

        Returns:
            The comparison.
        """
        return compare(outputs, self.outputs, replace(tolerance or Tolerance(), halves=self.halves))

    def files(self) -> dict[str, bytes]:
        """Return the members of a saved program that hold the arrays.

        Returns:
            Contents by name.

        Raises:
            ArtifactError: A value is not a tensor of numbers that numpy knows.
        """
        values = [*self.inputs.items(), *self.outputs.items()]
        raise_all(
            ArtifactError,
            [
                f"{name!r} cannot be part of a self-test: it is no tensor of numbers that numpy knows"
                for name, value in values
                if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS
            ],
        )
        return {_INPUTS: _packed(self.inputs), _OUTPUTS: _packed(self.outputs)}

    @classmethod
    def read(cls, files: Mapping[str, bytes], reference: str, halves: Mapping[str, str]) -> SelfTest:
        """Read what `files` returned.

        Args:
            files: Members of a saved program.
            reference: What computed the outputs.
            halves: The types of half precision that they are computed from.

        Returns:
            The inputs and outputs.

        Raises:
            KeyError: A member is missing.
            FileError: A member is damaged.
        """
        inputs, outputs = (read_arrays(io.BytesIO(files[name]), repr(name)) for name in (_INPUTS, _OUTPUTS))
        return cls(inputs, outputs, reference, halves)


def _packed(arrays: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    write_arrays(buffer, arrays)
    return buffer.getvalue()
