"""The examples in the documents on executors and on clusters are true."""

import doctest
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from toolchains.machines import command_or_skip

import tvmtarget as tt

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["executors", "machines"])
def test_the_documents_on_executors(page, monkeypatch):
    pytest.importorskip("onnxruntime")
    if page == "executors" and shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / f"{page}.md"), module_relative=False)
    assert tried
    assert not failed


def plain(code):
    """Return C code without comments, line breaks and names of parameters."""
    code = " ".join(re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL).split())
    return re.sub(r"\*\w+(?=[,)])", "*", code)


def test_the_c_of_the_document_fits_what_is_exported(tmp_path):
    command_or_skip("gcc")
    page = (ROOT / "docs" / "executors.md").read_text(encoding="utf-8")
    interface, _devices, mapped = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    module = tt.IRModule.parse("func @main(%x: float32[2]) opsets(onnx=17) { %y = onnx.Tanh(%x) return %y }")
    for options in ("", ",workspace-io=true"):
        system = f"c(executor=aot(interface-api=c,unpacked-api=true{options}),runtime=crt)"
        tt.build(module, system).export(tmp_path / (options[1:] or "plain"))
    header = plain((tmp_path / "plain" / "include" / "tvmgen_default.h").read_text())
    assert [one for one in plain(interface).split("; ") if one.rstrip(";") not in header] == []
    code = (
        f'#include <string.h>\n#include "tvmgen_default.h"\nvoid f(const float *x, void use(float *)) {{\n{mapped}}}\n'
    )
    (tmp_path / "mapped.c").write_text(code)
    include = f"-I{tmp_path / 'workspace-io=true' / 'include'}"
    subprocess.run(["gcc", "-std=c99", "-Wall", "-Werror", "-fsyntax-only", include, tmp_path / "mapped.c"], check=True)
