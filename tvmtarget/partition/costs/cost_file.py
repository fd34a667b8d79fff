"""Read and write cost files, schema `tvmtarget.cost/1`; one error lists all problems with their JSON paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tvmtarget.errors import TargetError, TargetFileError, did_you_mean, raise_all
from tvmtarget.files import has_file
from tvmtarget.ir.types import DTYPES
from tvmtarget.partition.costs.costs import (
    MOST,
    Costs,
    LinkCost,
    OpCost,
    Shares,
    SiteCost,
    SubgraphCost,
    Unit,
    check_costs,
)
from tvmtarget.partition.costs.work import FORMS
from tvmtarget.target.problems import shown
from tvmtarget.untrusted import parse_json, read_text

__all__ = ["SCHEMA", "load_costs", "write_costs"]

SCHEMA = "tvmtarget.cost/1"

# Units of a file: that of the costs which are read, and how many of it. Rates are per second or per joule.
_UNITS: Mapping[str, tuple[Unit, float]] = {
    "ns": ("us", 1e-3),
    "us": ("us", 1.0),
    "ms": ("us", 1e3),
    "s": ("us", 1e6),
    "nJ": ("uJ", 1e-3),
    "uJ": ("uJ", 1.0),
    "mJ": ("uJ", 1e3),
    "J": ("uJ", 1e6),
}


def load_costs(source: Costs | Mapping[str, object] | str | Path) -> Costs:
    """Read costs from any of their forms.

    Args:
        source: costs, JSON data, the path of a JSON file, or the word `roofline` for rooflines alone.

    Returns:
        Checked costs.

    Raises:
        TargetError: with all problems and their places.
        TargetFileError: if the file cannot be read or is no JSON.

    >>> load_costs({"schema": "tvmtarget.cost/1", "sites": {"npu": {"launch": 5}}}).sites["npu"].launch
    5.0
    """
    if isinstance(source, Costs):
        return check_costs(source)
    if source == "roofline":
        return Costs()
    if isinstance(source, Mapping):
        return _read(source, "costs")
    if not isinstance(source, str | Path):
        raise TargetError(f"costs are data, a JSON file or 'roofline', not {shown(source)}")
    if source == "measured" and not has_file(Path(source)):
        raise TargetError(
            "costs are 'measured' on the command line only; pass "
            "tvmtarget.autotune.search.rates.measure_rates(target).costs"
        )
    text = read_text(source, "cost file", error=TargetFileError)
    return _read(parse_json(text, f"cost file {str(source)!r}", error=TargetFileError), str(source))


def _read(data: object, source: str) -> Costs:
    reader = _Reader(source)
    costs = reader.costs(data)
    raise_all(TargetError, reader.problems)
    return check_costs(costs)


def write_costs(costs: Costs) -> dict[str, object]:
    """Return costs as the JSON data that `load_costs` reads.

    Args:
        costs: the costs.

    Returns:
        An object of schema `tvmtarget.cost/1`; fields that are not stated are left out.
    """
    flat: dict[str, object] = {"schema": SCHEMA, "unit": costs.unit}
    if costs.sites:
        flat["sites"] = {
            name: _stated(
                launch=site.launch,
                flops=dict(site.flops) or None,
                mem_bw=site.mem_bw,
                boundary_bw=site.boundary_bw,
                roofline=site.roofline,
                domain=site.domain,
                capacity=site.capacity,
                origin=site.origin,
            )
            for name, site in costs.sites.items()
        }
    if costs.links:
        flat["links"] = [
            _stated(src=link.src, dst=link.dst, latency=link.latency, bandwidth=link.bandwidth, origin=link.origin)
            for link in costs.links
        ]
    if costs.ops:
        flat["ops"] = [_written(op) for op in costs.ops]
    if costs.subgraphs:
        # The schema calls measured functions regions; renaming them would break existing files.
        flat["regions"] = [
            {"match": {"structure": one.structure}, "site": one.site, "time": one.time} | _stated(origin=one.origin)
            for one in costs.subgraphs
        ]
    default = Costs(unit=costs.unit)
    doubt = {"doubt": costs.doubt} if costs.doubt else {}
    if doubt or (costs.roofline, costs.launch) != (default.roofline, default.launch):
        flat["default"] = {"roofline": costs.roofline, "launch": costs.launch} | doubt
    return flat | ({"symbolic_hints": dict(costs.symbolic_hints)} if costs.symbolic_hints else {})


def _written(op: OpCost) -> dict[str, object]:
    shape = None if op.shape is None else list(op.shape)
    match = _stated(op=op.op, form=op.form, dtype=op.dtype, shape=shape, structure=op.structure)
    shares = [list(pair) for pair in op.roofline] if isinstance(op.roofline, tuple) else op.roofline
    time = op.time if op.time is not None else {"roofline": shares}
    return {"match": match, "site": op.site, "time": time} | _stated(stdev=op.stdev, origin=op.origin)


def _stated(origin: str = "", **fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None} | ({"from": origin} if origin else {})


class _Reader:
    """Reads JSON values and collects problems with their paths; a wrong value reads as absent."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.unit: Unit = "us"
        self.factor = 1.0
        self.problems: list[str] = []

    def costs(self, data: object) -> Costs:
        names = ("schema", "unit", "sites", "links", "ops", "regions", "default", "symbolic_hints")
        flat = self._object(data, "", names)
        if flat.get("schema") != SCHEMA and isinstance(data, Mapping):
            self._wrong("schema", f"it should be {SCHEMA!r}, not {shown(flat.get('schema'))}")
        unit = flat.get("unit", "us")
        if not isinstance(unit, str) or unit not in _UNITS:
            self._wrong("unit", f"it should be one of {', '.join(_UNITS)}, not {shown(unit)}")
        else:
            self.unit, self.factor = _UNITS[unit]
        default = self._object(flat.get("default", {}), "default", ("roofline", "launch", "doubt"))
        share = self._share(default.get("roofline"), "default.roofline")
        launch = self._time(default.get("launch"), "default.launch")
        hints = self._object(flat.get("symbolic_hints", {}), "symbolic_hints", None)
        defaults = Costs(unit=self.unit)
        return Costs(
            sites={name: self._site(value, f"sites.{name}") for name, value in self._named(flat, "sites")},
            links=tuple(self._link(value, place) for value, place in self._listed(flat, "links")),
            ops=tuple(self._op(value, place) for value, place in self._listed(flat, "ops")),
            subgraphs=tuple(self._subgraph(value, place) for value, place in self._listed(flat, "regions")),
            roofline=share if share is not None else defaults.roofline,
            launch=launch if launch is not None else defaults.launch,
            doubt=self._number(default.get("doubt"), "default.doubt") or 0.0,
            symbolic_hints={name: self._whole(size, f"symbolic_hints.{name}") for name, size in hints.items()},
            unit=self.unit,
        )

    def _site(self, data: object, place: str) -> SiteCost:
        fields = ("launch", "flops", "mem_bw", "boundary_bw", "roofline", "domain", "capacity", "from")
        flat = self._object(data, place, fields)
        flops = self._object(flat.get("flops", {}), f"{place}.flops", tuple(DTYPES))
        rates = {dtype: self._number(rate, f"{place}.flops.{dtype}", is_rate=True) for dtype, rate in flops.items()}
        return SiteCost(
            launch=self._time(flat.get("launch"), f"{place}.launch"),
            flops={dtype: rate for dtype, rate in rates.items() if rate is not None},
            mem_bw=self._number(flat.get("mem_bw"), f"{place}.mem_bw", is_rate=True),
            boundary_bw=self._number(flat.get("boundary_bw"), f"{place}.boundary_bw", is_rate=True),
            roofline=self._share(flat.get("roofline"), f"{place}.roofline"),
            domain=self._text(flat.get("domain"), f"{place}.domain"),
            capacity=None if "capacity" not in flat else self._whole(flat["capacity"], f"{place}.capacity"),
            origin=self._text(flat.get("from"), f"{place}.from") or "",
        )

    def _link(self, data: object, place: str) -> LinkCost:
        flat = self._object(data, place, ("src", "dst", "latency", "bandwidth", "from"))
        self._needs(flat, place, "src", "dst", "latency", "bandwidth")
        return LinkCost(
            src=self._text(flat.get("src"), f"{place}.src") or "",
            dst=self._text(flat.get("dst"), f"{place}.dst") or "",
            # Placeholders let reading go on, so that one error lists all problems; they are never used.
            latency=self._time(flat.get("latency"), f"{place}.latency") or 0.0,
            bandwidth=self._number(flat.get("bandwidth"), f"{place}.bandwidth", is_rate=True) or 1.0,
            origin=self._text(flat.get("from"), f"{place}.from") or "",
        )

    def _op(self, data: object, place: str) -> OpCost:
        flat = self._object(data, place, ("match", "site", "time", "stdev", "from"))
        self._needs(flat, place, "match", "site", "time")
        match = self._object(flat.get("match") or {}, f"{place}.match", ("op", "form", "dtype", "shape", "structure"))
        if flat.get("match") is not None and not match.keys() & {"op", "structure"}:
            self._wrong(f"{place}.match", "it needs 'op' or 'structure'")
        dtype = self._text(match.get("dtype"), f"{place}.match.dtype")
        if dtype is not None and dtype not in DTYPES:
            self._wrong(f"{place}.match.dtype", f"no element type {dtype!r}{did_you_mean(dtype, DTYPES)}")
        form = self._text(match.get("form"), f"{place}.match.form")
        if form is not None and form not in FORMS:
            self._wrong(f"{place}.match.form", f"no form {form!r}{did_you_mean(form, FORMS, listing='there are')}")
        time = flat.get("time")
        share = time.get("roofline") if isinstance(time, Mapping) else None
        if isinstance(time, Mapping):
            self._needs(self._object(time, f"{place}.time", ("roofline",)), f"{place}.time", "roofline")
        return OpCost(
            site=self._text(flat.get("site"), f"{place}.site") or "",
            op=self._text(match.get("op"), f"{place}.match.op"),
            form=form,
            dtype=dtype,
            shape=self._shape(match.get("shape"), f"{place}.match.shape"),
            structure=self._text(match.get("structure"), f"{place}.match.structure"),
            time=None if isinstance(time, Mapping) else self._time(time, f"{place}.time"),
            roofline=self._shares(share, f"{place}.time.roofline"),
            stdev=self._time(flat.get("stdev"), f"{place}.stdev"),
            origin=self._text(flat.get("from"), f"{place}.from") or "",
        )

    def _subgraph(self, data: object, place: str) -> SubgraphCost:
        flat = self._object(data, place, ("match", "site", "time", "from"))
        self._needs(flat, place, "match", "site", "time")
        match = self._object(flat.get("match") or {}, f"{place}.match", ("structure",))
        if flat.get("match") is not None:
            self._needs(match, f"{place}.match", "structure")
        return SubgraphCost(
            site=self._text(flat.get("site"), f"{place}.site") or "",
            structure=self._text(match.get("structure"), f"{place}.match.structure") or "",
            time=self._time(flat.get("time"), f"{place}.time") or 0.0,
            origin=self._text(flat.get("from"), f"{place}.from") or "",
        )

    def _wrong(self, place: str, problem: str) -> None:
        self.problems.append(f"{self.source}: {place}: {problem}" if place else f"{self.source}: {problem}")

    def _object(self, data: object, place: str, names: tuple[str, ...] | None) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            self._wrong(place, f"it should be an object, not {shown(data)}")
            return {}
        for name in data:
            if names is not None and name not in names:
                self._wrong(place, f"no field {name!r}{did_you_mean(str(name), names, listing='it has')}")
        return {str(name): value for name, value in data.items() if names is None or name in names}

    def _named(self, flat: Mapping[str, Any], name: str) -> Iterator[tuple[str, object]]:
        yield from self._object(flat.get(name, {}), name, None).items()

    def _listed(self, flat: Mapping[str, Any], name: str) -> Iterator[tuple[object, str]]:
        items = flat.get(name, [])
        if not isinstance(items, list | tuple):
            self._wrong(name, f"it should be a list, not {shown(items)}")
            return
        yield from ((item, f"{name}[{index}]") for index, item in enumerate(items))

    def _needs(self, flat: Mapping[str, Any], place: str, *names: str) -> None:
        missing = [repr(name) for name in names if flat.get(name) is None]
        if missing:
            self._wrong(place, f"it needs {', '.join(missing)}")

    def _text(self, value: object, place: str) -> str | None:
        if value is None or isinstance(value, str):
            return value
        self._wrong(place, f"it should be text, not {shown(value)}")
        return None

    def _number(self, value: object, place: str, *, is_rate: bool = False) -> float | None:
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_large = is_number and value > MOST  # type: ignore[operator]
        if is_number and not is_large and (value > 0 if is_rate else value >= 0):  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        expected = "a number above 0" if is_rate else "a number, 0 or more"
        if is_large:
            expected += f" and at most {MOST:g}"
        self._wrong(place, f"it should be {expected}, not {shown(value)}")
        return None

    def _time(self, value: object, place: str) -> float | None:
        """Return a time in microseconds, or an energy in microjoules, converted from the unit of the file."""
        number = self._number(value, place)
        return None if number is None else number * self.factor

    def _share(self, value: object, place: str) -> float | None:
        number = self._number(value, place, is_rate=True)
        if number is not None and number > 1:
            self._wrong(place, f"a share of the peaks is at most 1, not {shown(value)}")
        return number

    def _shares(self, value: object, place: str) -> Shares | None:
        """Return one share, or pairs of a size and a share."""
        if not isinstance(value, list | tuple):
            return self._share(value, place)
        pairs: list[tuple[float, float]] = []
        for index, pair in enumerate(value):
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                self._wrong(f"{place}[{index}]", f"it should be a size and a share, not {shown(pair)}")
                continue
            size = self._number(pair[0], f"{place}[{index}]", is_rate=True)
            pairs.append((size or 1.0, self._share(pair[1], f"{place}[{index}]") or 1.0))
        return tuple(pairs)

    def _whole(self, value: object, place: str) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        is_large = is_whole and value > MOST  # type: ignore[operator]
        if is_whole and not is_large and value >= 0:  # type: ignore[operator]
            return value  # type: ignore[return-value]
        most = f" and at most {MOST:g}" if is_large else ""
        self._wrong(place, f"it should be a whole number, 0 or more{most}, not {shown(value)}")
        return 0

    def _shape(self, value: object, place: str) -> tuple[int, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            self._wrong(place, f"it should be a list of sizes, not {shown(value)}")
            return None
        return tuple(self._whole(size, place) for size in value)
