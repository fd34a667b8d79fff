"""The execution provider of an onnxruntime leaf: one that is built in, or a plugin that is loaded from a file.

ONNX Runtime runs on the CPU what a provider does not take, and everything where there is no such provider or device. At
most it reports that as a log line. Here each of these is an error that says what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtarget.errors import did_you_mean, first_line
from tvmtarget.target.tree import Target

__all__ = ["CPU", "Provider", "assigned"]

CPU = "CPUExecutionProvider"
_SUFFIX = "ExecutionProvider"


@dataclass(frozen=True)
class Provider:
    """The provider that a leaf states.

    Attributes:
        stated: the name as the target has it.
        device: the device of a plugin provider, such as `GPU.1`; empty for the first one.
        library: the file of a plugin provider; empty for one that is built in or registered already.
        options: options by name.
        allows_cpu: whether the CPU runs operations that the provider refuses.
    """

    stated: str
    device: str
    library: str
    options: Mapping[str, str]
    allows_cpu: bool

    @classmethod
    def of(cls, target: Target) -> Provider:
        """Read the attributes of a leaf.

        Args:
            target: a leaf of kind onnxruntime.

        Returns:
            The provider.

        Raises:
            ValueError: an option is no `name=value`, or the provider is the CPU and has options.
        """
        written = target["provider-options"] or ()
        texts = [str(text) for text in written] if isinstance(written, tuple) else [str(written)]
        pairs = [text.partition("=") for text in texts]
        wrong = [text for text, (name, equals, _) in zip(texts, pairs, strict=True) if not name.strip() or not equals]
        if wrong:
            raise ValueError(f"provider-options has {wrong[0]!r}, which is not name=value, such as 'device_id=1'")
        names = [name.strip() for name, _, _ in pairs]
        again = next((name for name in names if names.count(name) > 1), None)
        if again is not None:
            raise ValueError(f"provider-options has {again!r} twice")
        provider = cls(
            stated=str(target["provider"]),
            device=str(target["provider-device"] or ""),
            library=str(target["provider-library"] or ""),
            options={name: value.strip() for name, (_, _, value) in zip(names, pairs, strict=True)},
            allows_cpu=bool(target["cpu-fallback"]),
        )
        for name in ("provider-device", "provider-library", "provider-options", "cpu-fallback"):
            if provider.is_cpu and target[name]:
                raise ValueError(f"{name} has no effect, as the provider is {provider.stated}; state another provider")
        return provider

    @property
    def is_cpu(self) -> bool:
        """Whether it is ONNX Runtime's own provider for the CPU, which runs everything."""
        return _is_same(self.stated, CPU)

    @property
    def _path(self) -> str:
        return str(Path(self.library).expanduser().resolve())

    def register(self, ort: Any) -> None:  # noqa: ANN401 - the package ships no types
        """Load the library of a plugin provider, once in a process.

        Args:
            ort: the package.

        Raises:
            ValueError: it cannot be loaded, or another library has the name.
        """
        if not self.library or self.is_cpu:
            return
        if not hasattr(ort, "register_execution_provider_library"):
            raise ValueError(f"onnxruntime {ort.__version__} loads no plugin providers; install 1.23 or later")
        path = self._path
        loaded = _LOADED.setdefault(self.stated, path)
        if loaded != path:
            raise ValueError(f"provider {self.stated!r} is loaded from {loaded!r} already, and cannot be from {path!r}")
        if any(one.ep_metadata.get("library_path") == path for one in ort.get_ep_devices()):
            return
        if not Path(path).is_file():
            _LOADED.pop(self.stated)
            raise ValueError(f"provider-library {self.library!r} is no file")
        try:
            ort.register_execution_provider_library(self.stated, path)
        except Exception as error:
            if "already registered" in str(error) and self.stated in _REGISTERED:
                return
            _LOADED.pop(self.stated)
            raise ValueError(f"provider-library {self.library!r} cannot be loaded: {_first_line(error)}") from error
        _REGISTERED.add(self.stated)

    def problem(self, ort: Any) -> str | None:  # noqa: ANN401
        """Return why the provider cannot be used here; no library is loaded.

        Args:
            ort: the package.

        Returns:
            The reason, or None.
        """
        if self.is_cpu or self.name(ort):
            return self._device_problem(ort)
        if self.library:
            is_missing = not Path(self.library).expanduser().is_file()
            return f"provider-library {self.library!r} is no file" if is_missing else None
        known = _names(ort)
        return (
            f"onnxruntime {ort.__version__} has no provider {self.stated!r} here{did_you_mean(self.stated, known)}; it "
            f"has {', '.join(known)}; install the package of onnxruntime that has it, or state the provider-library of "
            "a plugin"
        )

    def name(self, ort: Any) -> str:  # noqa: ANN401
        """Return the name of the provider as ONNX Runtime spells it.

        Args:
            ort: the package.

        Returns:
            The name; empty if there is no such provider.
        """
        found = [name for name in (*ort.get_available_providers(), *_plugins(ort)) if _is_same(name, self.stated)]
        return found[0] if found else ""

    def add_to(self, options: Any, ort: Any) -> list[Any]:  # noqa: ANN401
        """Add the provider to the options of a session.

        Args:
            options: the options, which are changed.
            ort: the package.

        Returns:
            What `InferenceSession` takes as `providers`; empty for a plugin, which the options name.

        Raises:
            ValueError: there is no such provider or device here.
        """
        if self.is_cpu:
            return [CPU]
        self.register(ort)
        problem = self.problem(ort)
        name = self.name(ort)
        if problem is not None:
            raise ValueError(problem)
        if not name:
            others = sorted(
                {one.ep_name for one in _plugin_devices(ort) if one.ep_metadata["library_path"] == self._path}
            )
            raise ValueError(
                f"provider-library {self.library!r} has provider {others[0]!r}, not {self.stated!r}"
                if others
                else f"provider {self.stated!r} of {self.library!r} finds no device here that it supports"
            )
        # Without this entry, the CPU would be the only provider of a session whose own one fails to start.
        if not self.allows_cpu and not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"):
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        devices = self._devices(ort)
        if devices:
            options.add_provider_for_devices(devices[:1], dict(self.options))
            return []
        return [(name, dict(self.options))]

    def _devices(self, ort: Any) -> list[Any]:  # noqa: ANN401
        """Return the devices that the plugin provider finds and the target means."""
        kind, _, number = self.device.partition(".")
        found = [one for one in _plugin_devices(ort) if _is_same(one.ep_name, self.stated)]
        of_kind = [one for one in found if not kind or one.device.type.name == kind.upper()]
        return of_kind[int(number) :] if number.isdecimal() else [] if number else of_kind

    def _device_problem(self, ort: Any) -> str | None:  # noqa: ANN401
        if not self.device or self._devices(ort):
            return None
        found = [one.device.type.name for one in _plugin_devices(ort) if _is_same(one.ep_name, self.stated)]
        here = ", ".join(found) or "none that can be named: state device_id in provider-options, if the provider has it"
        return f"provider {self.stated!r} finds no device {self.device!r} here; it finds {here}"


_LOADED: dict[str, str] = {}  # by name, the library of each plugin provider of this process
_REGISTERED: set[str] = set()


def assigned(session: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield which provider runs which node of a session.

    Args:
        session: a session that records this.

    Yields:
        The name of a node, and that of its provider.
    """
    for part in session.get_provider_graph_assignment_info():
        for node in part.get_nodes():
            yield node.name, part.ep_name


def _plugin_devices(ort: Any) -> Sequence[Any]:  # noqa: ANN401
    devices = ort.get_ep_devices() if hasattr(ort, "get_ep_devices") else []
    built_in = {*ort.get_all_providers()}
    return [one for one in devices if one.ep_name not in built_in or "library_path" in one.ep_metadata]


def _plugins(ort: Any) -> list[str]:  # noqa: ANN401
    return list(dict.fromkeys(one.ep_name for one in _plugin_devices(ort)))


def _names(ort: Any) -> list[str]:  # noqa: ANN401
    names = dict.fromkeys((*ort.get_available_providers(), *_plugins(ort)))
    return [name.removesuffix(_SUFFIX) or name for name in names]


def _is_same(name: str, other: str) -> bool:
    return _short(name) == _short(other)


def _short(name: str) -> str:
    name = name.lower().removesuffix(_SUFFIX.lower())
    return "dml" if name == "directml" else name


def _first_line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))
