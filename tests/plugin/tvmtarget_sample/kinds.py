"""The kind `probe`."""

from tvmtarget.target.kinds import Attribute, Kind

__all__ = ["KINDS"]

KINDS = (
    Kind(
        name="probe",
        device="ext_dev",
        keys=("probe", "npu"),
        attributes=(Attribute(name="lanes", type="int", class_="capacity", default=4, doc="a number to compare"),),
        doc="a device that writes down what it runs",
    ),
)
