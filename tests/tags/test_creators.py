"""TVM's former functions, with the targets that they created for every model from TVM v0.9 to v0.19."""

import doctest
from pathlib import Path

import pytest

from tvmtarget import CompilationConfig, Executor, Runtime, Target
from tvmtarget.errors import TargetError, UnknownNameError
from tvmtarget.tags import creators
from tvmtarget.tags.registry import default_registry

ARM = "-keys=arm_cpu,cpu -device=arm_cpu"
RISCV = "-keys=riscv_cpu,cpu -device=riscv_cpu"

# Texts of TVM's own: python/tvm/target/target.py of v0.19.0.
MADE = {
    creators.micro: {
        "host": "c -model=host",
        "atsamd51": "c -mcpu=cortex-m4 -model=atsamd51",
        "cxd5602gg": "c -mcpu=cortex-m4 -model=cxd5602gg",
        "esp32": "c -model=esp32",
        "imxrt10xx": "c -mcpu=cortex-m7 -model=imxrt10xx",
        "mps2_an521": "c -mcpu=cortex-m33 -model=mps2_an521",
        "mps3_an547": "c -mcpu=cortex-m55 -model=mps3_an547",
        "nrf52840": "c -mcpu=cortex-m4+nodsp -model=nrf52840",
        "nrf5340dk": "c -mcpu=cortex-m33 -model=nrf5340dk",
        "rp2040": "c -mcpu=cortex-m0 -model=rp2040",
        "sam3x8e": "c -mcpu=cortex-m3 -model=sam3x8e",
        "stm32f746xx": "c -mcpu=cortex-m7 -march=armv7e-m -model=stm32f746xx",
        "stm32h7xx": "c -mcpu=cortex-m7 -model=stm32h7xx",
        "stm32l4r5zi": "c -mcpu=cortex-m4 -model=stm32l4r5zi",
        "stm32u5xx": "c -mcpu=cortex-m33 -model=stm32u5xx",
        "zynq_mp_r5": "c -mcpu=cortex-r5 -model=zynq_mp_r5",
    },
    creators.stm32: {
        "H7xx": "c -device=arm_cpu -mcpu=cortex-m7 -march=armv7e-m -model=stm32H7xx",
        "F7xx": "c -device=arm_cpu -mcpu=cortex-m7 -model=stm32F7xx",
        "F4xx": "c -device=arm_cpu -mcpu=cortex-m4 -model=stm32F4xx",
        "F2xx": "c -device=arm_cpu -mcpu=cortex-m3 -model=stm32F2xx",
        "G0xx": "c -device=arm_cpu -mcpu=cortex-m0plus -model=stm32G0xx",
        "F0xx": "c -device=arm_cpu -mcpu=cortex-m0 -model=stm32F0xx",
        "F1xx": "c -device=arm_cpu -mcpu=cortex-m3 -model=stm32F1xx",
        "G4xx": "c -device=arm_cpu -mcpu=cortex-m4 -model=stm32G4xx",
        "F3xx": "c -device=arm_cpu -mcpu=cortex-m4 -model=stm32F3xx",
        "U5xx": "c -device=arm_cpu -mcpu=cortex-m33 -model=stm32U5xx",
        "L5xx": "c -device=arm_cpu -mcpu=cortex-m33 -model=stm32L5xx",
        "L4xx": "c -device=arm_cpu -mcpu=cortex-m4 -model=stm32L4xx",
        "L1xx": "c -device=arm_cpu -mcpu=cortex-m3 -model=stm32L1xx",
        "L0xx": "c -device=arm_cpu -mcpu=cortex-m0plus -model=stm32L0xx",
    },
    creators.arm_cpu: {
        "pixel2": f"llvm {ARM} -model=snapdragon835 -mtriple=arm64-linux-android -mattr=+neon",
        "mate10": f"llvm {ARM} -model=kirin970 -mtriple=arm64-linux-android -mattr=+neon",
        "mate10pro": f"llvm {ARM} -model=kirin970 -mtriple=arm64-linux-android -mattr=+neon",
        "p20": f"llvm {ARM} -model=kirin970 -mtriple=arm64-linux-android -mattr=+neon",
        "p20pro": f"llvm {ARM} -model=kirin970 -mtriple=arm64-linux-android -mattr=+neon",
        "rasp3b": f"llvm {ARM} -model=bcm2837 -mtriple=armv7l-linux-gnueabihf -mattr=+neon",
        "rasp4b": f"llvm {ARM} -model=bcm2711 -mtriple=armv8l-linux-gnueabihf -mattr=+neon -mcpu=cortex-a72",
        "rasp4b64": f"llvm {ARM} -model=bcm2711 -mtriple=aarch64-linux-gnu -mattr=+neon -mcpu=cortex-a72",
        "rk3399": f"llvm {ARM} -model=rk3399 -mtriple=aarch64-linux-gnu -mattr=+neon",
        "pynq": f"llvm {ARM} -model=pynq -mtriple=armv7a-linux-eabi -mattr=+neon",
        "ultra96": f"llvm {ARM} -model=ultra96 -mtriple=aarch64-linux-gnu -mattr=+neon",
        "beagleai": f"llvm {ARM} -model=beagleai -mtriple=armv7a-linux-gnueabihf -mattr=+neon,+vfp4,+thumb2 "
        "-mcpu=cortex-a15",
        "stm32mp1": f"llvm {ARM} -model=stm32mp1 -mtriple=armv7a-linux-gnueabihf -mattr=+neon,+vfp4,+thumb2 "
        "-mcpu=cortex-a7",
        "thunderx": f"llvm {ARM} -model=thunderx -mtriple=aarch64-linux-gnu -mattr=+neon,+crc,+lse -mcpu=thunderxt88",
    },
    creators.riscv_cpu: {
        "sifive-e31": f"llvm {RISCV} -model=sifive-e31 -mtriple=riscv32-unknown-linux-gnu -mcpu=sifive-e31 -mabi=ilp32",
        "sifive-e76": f"llvm {RISCV} -model=sifive-e76 -mtriple=riscv32-unknown-linux-gnu -mcpu=sifive-e76 -mabi=ilp32",
        "sifive-u54": f"llvm {RISCV} -model=sifive-u54 -mtriple=riscv64-unknown-linux-gnu -mcpu=sifive-u54 -mabi=lp64d",
        "sifive-u74": f"llvm {RISCV} -model=sifive-u74 -mtriple=riscv64-unknown-linux-gnu -mcpu=sifive-u74 -mabi=lp64d",
        "licheepi3a": f"llvm {RISCV} -num-cores=8 -mtriple=riscv64-unknown-linux-gnu -mcpu=spacemit-x60 "
        "-mfloat-abi=hard -mabi=lp64d",
        "spacemit-k3": f"llvm {RISCV} -num-cores=8 -mtriple=riscv64-unknown-linux-gnu -mcpu=spacemit-x100 "
        "-unchecked=mcpu -mfloat-abi=hard -mabi=lp64d",
    },
    creators.hexagon: {
        "v65": "hexagon -mtriple=hexagon -mcpu=hexagonv65 -mattr=+hvxv65,+hvx-length128b -num-cores=4 "
        "-vtcm-capacity=262144",
        "v66": "hexagon -mtriple=hexagon -mcpu=hexagonv66 -mattr=+hvxv66,+hvx-length128b -num-cores=4 "
        "-vtcm-capacity=262144",
        "v67": "hexagon -mtriple=hexagon -mcpu=hexagonv67 -mattr=+hvxv67,+hvx-length128b -num-cores=4",
        "v68": "hexagon -mtriple=hexagon -mcpu=hexagonv68 -mattr=+hvxv68,+hvx-length128b,+hvx-qfloat,-hvx-ieee-fp "
        "-num-cores=4 -vtcm-capacity=4194304 -llvm-options=-force-hvx-float",
        "v69": "hexagon -mtriple=hexagon -mcpu=hexagonv69 -mattr=+hvxv69,+hvx-length128b,+hvx-qfloat,-hvx-ieee-fp "
        "-num-cores=4 -vtcm-capacity=8388608",
        "v73": "hexagon -mtriple=hexagon -mcpu=hexagonv73 -mattr=+hvxv73,+hvx-length128b,+hvx-qfloat,-hvx-ieee-fp "
        "-num-cores=4 -vtcm-capacity=8388608",
        "v75": "hexagon -mtriple=hexagon -mcpu=hexagonv75 -mattr=+hvxv75,+hvx-length128b,+hvx-qfloat,-hvx-ieee-fp "
        "-num-cores=4 -vtcm-capacity=8388608",
    },
    creators.mali: {"rk3399": "opencl -device=mali -model=rk3399"},
    creators.bifrost: {"g76": "opencl -device=bifrost -model=g76"},
    creators.adreno: {"a640": "opencl -device=adreno -model=a640"},
    creators.intel_graphics: {"uhd": "opencl -device=intel_graphics -thread_warp_size=16 -model=uhd"},
    creators.vta: {"pynq": "ext_dev -device=vta -keys=vta,cpu -model=pynq"},
}
CASES = [(function, model, text) for function, models in MADE.items() for model, text in models.items()]


@pytest.mark.parametrize(("function", "model", "text"), CASES, ids=[f"{f.__name__}-{m}" for f, m, _ in CASES])
def test_a_model_has_every_fact_that_tvm_gave_it(function, model, text):
    made, historic = function(model), Target.parse(text)
    assert made.kind == historic.kind
    assert {**made.attrs, **historic.attrs} == {**made.attrs}
    assert historic.keys == made.keys or function is creators.adreno


@pytest.mark.parametrize("function", [creators.micro, creators.stm32])
def test_a_bare_cpu_has_no_further_facts(function):
    for model, text in MADE[function].items():
        assert function(model) == Target.parse(text)


def test_a_device_without_a_model_is_generic():
    assert creators.mali() == Target.parse("opencl -device=mali")
    assert creators.riscv_cpu() == creators.riscv_cpu("sifive-u54")
    assert creators.rasp() == creators.arm_cpu("rasp3b")
    assert creators.cuda() == Target("cuda")
    assert creators.rocm() == Target("rocm")


def test_a_gpu_is_a_tag_or_has_an_arch():
    assert creators.cuda("a100")["arch"] == "sm_80"
    assert creators.cuda("jetson-nano")["arch"] == "sm_53"
    assert creators.cuda("jetson-nano").kind == "cuda"
    assert creators.cuda("of-next-year", arch="sm_90") == Target("cuda", {"model": "of-next-year", "arch": "sm_90"})
    assert creators.cuda("a100", arch="sm_70")["arch"] == "sm_70"


def test_options_override_the_tag_of_a_model():
    assert creators.micro("stm32f746xx", "-mcpu=cortex-m33")["mcpu"] == "cortex-m33"
    assert creators.arm_cpu("rasp4b64", "-num-cores=2 -mattr=+crc")["mattr"] == ("+crc", "+neon")
    assert creators.mali("t860", "-max_num_threads=64")["max_num_threads"] == 64


def test_hexagon_states_vectors_floats_and_options():
    bare = creators.hexagon("v66", hvx=0, num_cores=2, vtcm_capacity=65536)
    assert bare == Target.parse(
        "hexagon -mtriple=hexagon -mcpu=hexagonv66 -mattr=-hvx -num-cores=2 -vtcm-capacity=65536"
    )
    assert creators.hexagon("v66", hvx=64)["mattr"] == ("+hvx-length64b", "+hvxv66")
    assert "-hvx-qfloat" in creators.hexagon("v73", use_qfloat=False)["mattr"]
    assert "+hvx-ieee-fp" in creators.hexagon("v73", use_ieee_fp=True)["mattr"]
    assert creators.hexagon(llvm_options="-a=1 -b")["llvm-options"] == ("-a@1", "-b", "-force-hvx-float")


WRONG = [
    (lambda: creators.micro("stm32f746"), "unknown model 'stm32f746' of 'micro'; did you mean 'stm32f746xx'"),
    (lambda: creators.stm32("F9xx"), "unknown model 'F9xx' of 'stm32'; did you mean 'F7xx'"),
    (lambda: creators.arm_cpu("rasp4"), "unknown model 'rasp4' of 'arm'; did you mean 'rasp4b'"),
    (lambda: creators.arm_cpu("corstone-300"), "unknown model 'corstone-300' of 'arm'"),
    (lambda: creators.riscv_cpu("sifive-u77"), "unknown model 'sifive-u77' of 'riscv'; did you mean 'sifive-u7"),
    (lambda: creators.cuda("a1000"), "unknown model 'a1000' of 'nvidia'; did you mean 'a100'"),
    (lambda: creators.rocm("no-such-card"), "unknown model 'no-such-card' of 'amd'"),
    (lambda: creators.hexagon("v70"), "unknown Hexagon version 'v70'; did you mean 'v7"),
]


@pytest.mark.parametrize(("call", "problem"), WRONG, ids=range(len(WRONG)))
def test_an_unknown_model_comes_with_the_nearest(call, problem):
    with pytest.raises(UnknownNameError) as caught:
        call()
    assert str(caught.value).startswith(problem)


def test_an_invalid_vector_length_is_rejected():
    with pytest.raises(TargetError, match="'hvx' is one of 0, 64, 128, not 32"):
        creators.hexagon("v66", hvx=32)


def test_every_model_is_a_tag_too():
    for namespace in ("micro", "stm32"):
        for model in MADE[getattr(creators, namespace)]:
            assert default_registry()[f"{namespace}/{model}"] == getattr(creators, namespace)(model)


def test_the_document_is_current():
    path = Path(__file__).parents[2] / "docs" / "creators.md"
    failed, tried = doctest.testfile(str(path), module_relative=False)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda: creators.stm32("stm32F4xx"), "stm32/F4xx"),
        (lambda: creators.arm_cpu(), "llvm -device=arm_cpu -keys=arm_cpu,cpu"),
        (lambda: creators.arm_cpu("unknown", "-num-cores=4"), "llvm -device=arm_cpu -keys=arm_cpu,cpu -num-cores=4"),
        (lambda: creators.mali("unknown"), "opencl -device=mali"),
        (lambda: creators.cuda("unknown", "sm_80"), "cuda(arch=sm_80)"),
        (lambda: creators.rocm("unknown"), "rocm"),
        (lambda: creators.cuda(options=["-libs=cublas,cudnn", "-arch=sm_80"]), "cuda(arch=sm_80,libs=cublas+cudnn)"),
        (lambda: creators.hexagon("hexagonv68"), "qcom/hexagon-v68"),
        (lambda: creators.hexagon("v68", llvm_options=["-a=1", "-b"]), None),
    ],
)
def test_functions_accept_the_spellings_of_tvm(made, text):
    """The spellings of TVM v0.18: `stm32H7xx`, the model "unknown", options as a list, `hexagonv68`."""
    if text is None:
        assert made() == creators.hexagon("v68", llvm_options="-a=1 -b")
    elif text.startswith("qcom/"):
        assert made() == creators.hexagon("v68")
    else:
        assert made() == Target.parse(text)


@pytest.mark.parametrize(
    ("executor", "options", "runtime"),
    [
        ("graph", "", {"kind": "crt", "system-lib": True}),
        ("aot", "", {"kind": "crt"}),
        ({"kind": "aot", "unpacked-api": True, "interface-api": "c"}, "", {"kind": "crt"}),
        (Executor("graph", {"link-params": True}), "-runtime=c", {"kind": "crt", "system-lib": True}),
        ("graph", ["-runtime=c", "--system-lib"], {"kind": "crt", "system-lib": True}),
    ],
)
@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_micro_returns_a_configuration_for_an_executor(executor, options, runtime):
    """RFC of CompilationConfig: micro(model, options, executor) has crt, with system-lib for the executor graph."""
    made = creators.micro("stm32f746xx", options, executor)
    assert (made.executor, made.runtime) == (Executor.from_json(executor), Runtime(runtime))
    config = CompilationConfig.from_target(made)
    assert (config.executor, config.runtime) == (made.executor, made.runtime)
    assert config.target_host == config.targets[0] == creators.micro("stm32f746xx")


@pytest.mark.filterwarnings("ignore::tvmtarget.errors.TvmTargetWarning")
def test_micro_refuses_executors_that_do_not_run_on_crt_or_that_are_given_twice():
    with pytest.raises(TargetError, match="vm"):
        creators.micro("stm32f746xx", executor="vm")
    with pytest.raises(TargetError, match="two runtimes are given: 'cpp' in options"):
        creators.micro("stm32f746xx", "-runtime=c++", "aot")
    with pytest.raises(UnknownNameError, match="unknown executor kind 'aott'"):
        creators.micro("stm32f746xx", executor="aott")


def test_no_options_are_none_as_in_tvm_and_others_are_words():
    assert creators.micro("stm32f746xx", None, "aot") == creators.micro("stm32f746xx", executor="aot")
    for options in (3, [3], {"mcpu": "x"}):
        with pytest.raises(TargetError, match="'options' are words of TVM's command line, a text or a list, not"):
            creators.micro("stm32f746xx", options)


def test_a_model_is_needed_where_tvm_needs_one():
    for function in (creators.micro, creators.stm32):
        with pytest.raises(ValueError, match="unknown model 'unknown'"):
            function()
