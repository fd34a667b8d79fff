"""The kinds of this library (entry point `builtin` of `tvmtarget.kinds`).

Names, types and defaults are those of every TVM version that had the kind: v0.9.0 and v0.19.0
(`src/target/target_kind.cc` and `src/relay/backend/contrib/*/target.cc`), main (`src/backend/*/codegen/target_kind.cc`)
and the 0.27 wheel; executors and runtimes are those of v0.8.0 to v0.19.0 (`src/relay/backend/{executor,runtime}.cc`).
`since` is the first of these versions that has an attribute (v0.9 may mean earlier), `until` the last that has a kind.
The class of each attribute is our reading of what it does.
"""

from __future__ import annotations

from tvmtarget.target.device_types import DEVICE_TYPES
from tvmtarget.target.kinds import Attribute, Kind

__all__ = ["KINDS"]


def _table(text: str) -> tuple[Attribute, ...]:
    """Parse rows of name, type, class, default ('-' for none), version since, and description.

    A type may be followed by the least value (`int>=1`), and the largest one after it (`int>=0<=1024`), by `^2` for a
    power of two, or by choices (`str:a|b`). A default may be followed by `~` and a derived default, with `@` and the
    name of a flag where it applies only if that is true (`1~32@flag`).
    """
    return tuple(_row(*line.split(maxsplit=5)) for line in text.splitlines() if line.strip())


def _row(name: str, type_: str, class_: str, default: str, since: str, doc: str) -> Attribute:
    type_, _, choices = type_.partition(":")
    type_, _, limits = type_.partition(">=")
    least, _, most = limits.partition("<=")
    is_power = type_ == "int^2"
    type_ = "int" if is_power else type_
    default, _, derived = default.partition("~")
    derived, _, flag = derived.partition("@")
    value: object = None if default == "-" else default
    if value is not None and type_ in ("int", "bool"):
        value = int(default) if type_ == "int" else default == "true"
    elif value is not None and type_ == "list[int]":
        value = tuple(int(item) for item in default.strip("[]").split(",") if item)
    return Attribute.of_library(
        name=name,
        type=type_,
        class_=class_,
        default=value,
        derived=(int(derived) if type_ == "int" else derived) if derived else None,
        derived_if=(flag, True) if flag else None,
        least=1 if is_power else int(least) if least else None,
        most=int(most) if most else None,
        choices=tuple(choices.split("|")) if choices else (),
        power_of_two=is_power,
        doc=doc,
        since=since,
    )


# Every TVM target kind has these (macro TVM_REGISTER_TARGET_KIND); keys, tag and host are fields of the node.
_DEVICES = "|".join(map(str, DEVICE_TYPES))
_BASE = _table(f"""
    device              str        model  -  v0.9   device name, added to the keys: arm_cpu, mali, ...
    model               str        model  -  v0.9   name of the chip or board, for tuning logs
    libs                list[str]  hard   -  v0.9   libraries the code generator may call: cblas, cudnn, ...
    from_device         int        none   -  v0.9   read missing attributes from this device of the machine
    target_device_type  int:{_DEVICES}  hard  -  v0.10  number of the device type to use instead of the kind's own
    unchecked           list[str]  none   -  tt1    attributes whose values are newer than our tables
    clock-mhz              int>=1  none   -  tt1    highest clock that is sustained, in MHz
    peak-gflops-float64    int>=1  none   -  tt1    dense peak, 10^9 operations a second
    peak-gflops-float32    int>=1  none   -  tt1    the same, of float32 without tensor units
    peak-gflops-tfloat32   int>=1  none   -  tt1    the same, of float32 by tensor units with 10 bits of fraction
    peak-gflops-bfloat16   int>=1  none   -  tt1    the same, of bfloat16
    peak-gflops-float16    int>=1  none   -  tt1    the same, of float16
    peak-gflops-float8     int>=1  none   -  tt1    the same, of 8-bit floats
    peak-gflops-float4     int>=1  none   -  tt1    the same, of 4-bit floats
    peak-gflops-int8       int>=1  none   -  tt1    the same, of 8-bit integers
    peak-gflops-int4       int>=1  none   -  tt1    the same, of 4-bit integers
""")

# Numbers of units of a device for which TVM has no attribute.
_UNITS = _table("""
    num-compute-units   int>=1  scale  -  tt1    multiprocessors, compute units or cores of an accelerator
""")

# Attributes of a CPU in addition to those of TVM.
_CPU = _table("""
    threads-per-core    int>=1  scale  -  tt1    hardware threads of a core
    l1d-cache-bytes     int>=1  scale  -  tt1    level 1 data cache of a core
    l2-cache-bytes      int>=1  scale  -  tt1    level 2 cache of a core, or of the cluster that shares it
    l3-cache-bytes      int>=1  scale  -  tt1    level 3 cache of a socket
""")

_LLVM = _table("""
    mcpu                str        isa    -  v0.9   CPU name as LLVM spells it
    mtriple             str        hard   -  v0.9   LLVM target triple; absent means this machine's
    mattr               features   isa    -  v0.9   CPU features added or removed: +avx2, -sse4a
    mfloat-abi          str:soft|softfp|hard        hard   -  v0.9   float ABI of 32-bit Arm: soft or hard
    mabi                str        hard   -  v0.9   ABI name, for RISC-V: ilp32, lp64d, ...
    num-cores           int>=1        scale  -  v0.9   physical cores, not hardware threads
    vector-width        int^2         isa    -  main   vector width in bits to prefer
    opt-level           int:0|1|2|3   soft   -  v0.9   LLVM optimisation level, 0 to 3
    fast-math           bool       hard   -  v0.9   allow all of LLVM's fast-math rewrites
    fast-math-nnan      bool       hard   -  v0.9   assume no NaN
    fast-math-ninf      bool       hard   -  v0.9   assume no infinities
    fast-math-nsz       bool       hard   -  v0.9   ignore the sign of zero
    fast-math-arcp      bool       hard   -  v0.9   allow reciprocals
    fast-math-contract  bool       hard   -  v0.9   allow fused multiply-add
    fast-math-reassoc   bool       hard   -  v0.9   allow reassociation
    cl-opt              list[str]  hard   -  v0.19  LLVM command-line options
    jit                 str:mcjit|orcjit        none   -  v0.19  LLVM JIT engine: mcjit or orcjit
    disable-winograd    bool       hard   -  tt1  compute no convolution by Winograd's algorithm, to save memory
""")

_C = _table("""
    mcpu                      str  isa   -  v0.9   CPU name as the C compiler spells it
    march                     str  isa   -  v0.9   architecture name, such as armv7e-m
    workspace-byte-alignment  int^2  hard  -  v0.9   alignment of workspaces in bytes
    constants-byte-alignment  int^2  hard  -  v0.9   alignment of constants in bytes
""")

_HEXAGON = _table("""
    mattr          features   isa       -  v0.9   DSP features added or removed: +hvxv68, +hvx-length128b
    mcpu           str        isa       -  v0.9   CPU name as LLVM spells it: hexagonv68
    mtriple        str        hard      -  v0.9   LLVM target triple
    llvm-options   list[str]  hard      -  v0.9   LLVM command-line options
    num-cores      int>=1        scale     -  v0.19  hardware threads with vector units
    vtcm-capacity  int>=1        capacity  -  v0.19  bytes of tightly coupled memory
""")

_CUDA = _table("""
    mcpu                         str  isa       -     v0.9   unused by CUDA C++, read by NVPTX
    arch                         str  isa       -     v0.9   compute capability: sm_53, sm_90a, ...
    max_shared_memory_per_block  int>=1  capacity  -     v0.9   bytes of shared memory a block may use
    max_threads_per_block        int>=1  capacity  -     v0.9   threads a block may have
    thread_warp_size             int>=1  hard      32    v0.9   threads of a warp
    registers_per_block          int>=1  capacity  -     v0.9   32-bit registers a block may use
    l2_cache_size_bytes          int>=1  scale     -     v0.19  bytes of L2 cache
    max_num_threads              int>=1  capacity  1024  v0.9   threads a block may have, as TVM's schedules read it
""")

_NVPTX = _table("""
    mcpu              str  isa       -     v0.9  compute capability: sm_53, sm_90a, ...
    mtriple           str  hard      -~nvptx64-nvidia-cuda  v0.9  must be nvptx64-nvidia-cuda
    max_num_threads   int>=1  capacity  1024  v0.9  threads a block may have
    thread_warp_size  int>=1  hard      32    v0.9  threads of a warp
""")

_ROCM = _table("""
    mcpu                         str       isa       -      v0.9  GPU name as LLVM spells it: gfx906, gfx90a, ...
    mtriple                      str       hard      -~amdgcn-amd-amdhsa-hcc  v0.9  must be amdgcn-amd-amdhsa-hcc
    mattr                        features  isa       -      v0.9  GPU features added or removed
    max_num_threads              int>=1       capacity  256    v0.9  threads a work-group may have
    max_threads_per_block        int>=1       capacity  256    v0.9  threads a block may have
    max_shared_memory_per_block  int>=1       capacity  65536  v0.9  bytes of local memory a block may use
    thread_warp_size             int>=1       hard      64     v0.9  threads of a wavefront
""")

_OPENCL = _table("""
    max_threads_per_block         int>=1  capacity  256    v0.19  threads a work-group may have
    max_shared_memory_per_block   int>=1  capacity  16384  v0.19  bytes of local memory a work-group may use
    max_num_threads               int>=1  capacity  256    v0.9   threads of a work-group, as schedules read it
    thread_warp_size              int>=1  hard      1      v0.9   threads that run in lock-step
    texture_spatial_limit         int>=1  capacity  16384  v0.9   largest width or height of an image
    texture_depth_limit           int>=1  capacity  2048   main   largest depth of an image
    max_function_args             int>=1  capacity  128    v0.19  arguments a kernel may have
    image_base_address_alignment  int  hard      64     main   alignment of an image's address, in pixels
""")

_METAL = _table("""
    max_num_threads              int>=1  capacity  256    v0.9   threads a thread group may have
    max_threads_per_block        int>=1  capacity  256    v0.19  threads a thread group may have
    max_shared_memory_per_block  int>=1  capacity  32768  v0.19  bytes of thread-group memory
    thread_warp_size             int>=1  hard      16     v0.9   threads of a SIMD group
    max_function_args            int>=1  capacity  31     v0.9   arguments a kernel may have
""")

_WEBGPU = _table("""
    max_num_threads              int>=1   capacity  256    v0.9  invocations a work-group may have
    max_shared_memory_per_block  int>=1   capacity  32768  main  bytes of work-group memory
    supports_subgroups           bool  hard      false  main  whether subgroup operations may be used
    thread_warp_size             int>=1   hard      1~32@supports_subgroups  main  invocations of a subgroup
""")

_VULKAN = _table("""
    mattr                                   features  isa       -      v0.9   features added or removed
    supports_float16                        bool      hard      -      v0.9   shaders may use 16-bit floats
    supports_float32                        bool      hard      true   v0.9   shaders may use 32-bit floats
    supports_float64                        bool      hard      -      v0.9   shaders may use 64-bit floats
    supports_int8                           bool      hard      -      v0.9   shaders may use 8-bit integers
    supports_int16                          bool      hard      -      v0.9   shaders may use 16-bit integers
    supports_int32                          bool      hard      true   v0.9   shaders may use 32-bit integers
    supports_int64                          bool      hard      -      v0.9   shaders may use 64-bit integers
    supports_8bit_buffer                    bool      hard      -      v0.9   buffers may hold 8-bit elements
    supports_16bit_buffer                   bool      hard      -      v0.9   buffers may hold 16-bit elements
    supports_storage_buffer_storage_class   bool      hard      -      v0.9   the storage class StorageBuffer is there
    supports_push_descriptor                bool      hard      -      v0.9   VK_KHR_push_descriptor is there
    supports_dedicated_allocation           bool      hard      -      v0.9   VK_KHR_dedicated_allocation is there
    supports_integer_dot_product            bool      hard      -      v0.9   integer dot products are there
    supports_cooperative_matrix             bool      hard      -      v0.19  cooperative matrices are there
    supported_subgroup_operations           int       hard      -      v0.9   bit mask of subgroup operations
    max_num_threads                         int>=1       capacity  256    v0.9   invocations a work-group may have
    max_threads_per_block                   int>=1       capacity  256    v0.9   invocations a work-group may have
    thread_warp_size                        int>=1       hard      1      v0.9   invocations of a subgroup
    max_block_size_x                        int>=1       capacity  -      v0.9   largest work-group in x
    max_block_size_y                        int>=1       capacity  -      v0.9   largest work-group in y
    max_block_size_z                        int>=1       capacity  -      v0.9   largest work-group in z
    max_push_constants_size                 int>=1       capacity  -      v0.9   bytes of push constants
    max_uniform_buffer_range                int>=1       capacity  -      v0.9   bytes of a uniform buffer
    max_storage_buffer_range                int>=1       capacity  -      v0.9   bytes of a storage buffer
    max_per_stage_descriptor_storage_buffer int>=1       capacity  -      v0.9   storage buffers a stage may use
    max_shared_memory_per_block             int>=1       capacity  -      v0.9   bytes of shared memory
    device_type                             str       model     -      v0.9   discrete, integrated, virtual or cpu
    device_name                             str       model     -      v0.9   name that the driver reports
    driver_name                             str       none      -      v0.9   name of the driver
    driver_version                          int       none      -      v0.9   version of the driver
    vulkan_api_version                      int       hard      -      v0.9   version of the API, as Vulkan packs it
    max_spirv_version                       int       hard      -      v0.9   newest SPIR-V, as SPIR-V packs it
""")

_TRN = _table("""
    partition_size               int>=1  hard      128     main  partitions of the state buffer
    max_sbuf_size_per_partition  int>=1  capacity  196608  main  bytes of state buffer in a partition
    max_psum_size_per_partition  int>=1  capacity  16384   main  bytes of accumulators in a partition
    num-cores                    int>=1  scale     -       main  cores of the chip
""")

_CCOMPILER = _table("""
    header  str  hard  -  v0.9  text to put before the generated code
""")

_CUTLASS = _table("""
    sm                      int        isa   80     v0.9  compute capability as a number
    use_3xtf32              bool       hard  true   v0.9  compute float32 by three TF32 products
    split_k_slices          list[int]  soft  [1]    v0.9  how often the reduction may be split
    profile_all_alignments  bool       none  false  v0.9  measure all alignments
    find_first_valid        bool       none  false  v0.9  take the first kernel that works
    use_multiprocessing     bool       none  false  v0.9  compile candidates in parallel
    threads                 int        none  -1     v0.9  threads to compile with
    use_fast_math           bool       hard  false  v0.9  allow approximate functions
    tmp_dir                 str        none  ./tmp  v0.9  folder for generated files
""")

_TENSORRT = _table("""
    tensorrt_version         list[int]  hard      []          v0.19  version to generate for
    use_implicit_batch       bool       hard      true        v0.19  leave the batch dimension to TensorRT
    remove_no_mac_subgraphs  bool       soft      false       v0.19  keep parts without products on the host
    max_workspace_size       int>=1        capacity  1073741824  v0.19  bytes of scratch memory
    use_fp16                 bool       hard      false       v0.19  compute in half precision
    use_uint8                bool       hard      false       v0.19  compute in 8 bits
""")

_EXAMPLE = _table("""
    example_attribute  int  hard  0  v0.9  a number, to show how attributes reach a hook
""")

# Options of code generators that TVM kept in the pass context (`relay.ext.*.options`: compiler_attrs of
# `src/relay/backend/contrib/{ethosu,ethosn,cmsisnn,mrvl,vitis_ai}` at v0.18.0); tvmc set them as those of a target.
_ETHOS_U = _table("""
    accelerator-config            str   isa   -      tt1  product and its MACs: ethos-u55-256, ethos-u65-512
    enable_cascader               bool  soft  false  tt1  plan subgraphs in cascades
    enable_striping               bool  soft  false  tt1  split operations of a cascade into stripes
    disable_copying_constants     bool  hard  false  tt1  constants are in SRAM already; for code without the cascader
    dev_force_block_config        str   soft  -      tt1  use one block configuration: height x width x depth
    dev_max_open_plans            str   soft  8      tt1  open plans kept for each group of parts
    dev_max_closed_plans          str   soft  32     tt1  closed plans kept for each group of parts
    dev_select_proposal_idx       str   soft  -1     tt1  proposal to take, by its number
    dev_disable_pareto_plans      bool  soft  false  tt1  keep plans that another one dominates
    dev_disable_pareto_proposals  bool  soft  false  tt1  keep proposals that another one dominates
    dev_disable_block_culling     bool  soft  false  tt1  keep all block configurations
    dev_cascader_logging          bool  none  false  tt1  write a log of the cascader
""")

_ETHOS_N = _table("""
    variant                        str  isa   n78    tt1  product: n78
    sram_size                      str  capacity  0  tt1  bytes of SRAM, 0 for that of the variant
    tops                           str:1|2|4|8  isa  1  tt1  10^12 operations a second
    ple_ratio                      str:2|4      isa  2  tt1  programmable layer engines for each compute engine
    strategy0                      bool  soft  true   tt1  allow scheduling strategy 0
    strategy1                      bool  soft  true   tt1  allow scheduling strategy 1
    strategy3                      bool  soft  true   tt1  allow scheduling strategy 3
    strategy4                      bool  soft  true   tt1  allow scheduling strategy 4
    strategy6                      bool  soft  true   tt1  allow scheduling strategy 6
    strategy7                      bool  soft  true   tt1  allow scheduling strategy 7
    dump_ram                       bool  none  false  tt1  write the memory for debugging
    initial_sram_dump              bool  none  false  tt1  write the SRAM before it is used
    block_config_16x16             bool  soft  true   tt1  allow blocks of 16 by 16
    block_config_32x8              bool  soft  true   tt1  allow blocks of 32 by 8
    block_config_8x32              bool  soft  true   tt1  allow blocks of 8 by 32
    block_config_8x8               bool  soft  true   tt1  allow blocks of 8 by 8
    enable_intermediate_compression bool soft  true   tt1  compress intermediate values
    disable_winograd               bool  hard  false  tt1  compute no convolution by Winograd's algorithm
    debug_dir                      str   none  .      tt1  folder for debugging files
    inline_non_compute_intensive_partitions  bool  soft  true   tt1  leave cheap subgraphs to TVM
    experimental_compiler          bool  soft  false  tt1  use the cascading compiler
""")

_CMSIS_NN = _table("""
    mcpu              str       isa   -      tt1  CPU name as the C compiler spells it: cortex-m55
    mattr             features  isa   -      tt1  features removed from it: -mve, -dsp
    debug_last_error  bool      none  false  tt1  keep the last error of a kernel
""")

_MRVL = _table("""
    mcpu       str:cn10ka|cnf10kb  isa    cn10ka  tt1  class of the inference processor
    num_tiles  int>=1              scale  8       tt1  most tiles that may be used: 1, 2, 4 or 8
    mattr      str                 hard   -       tt1  options of the compiler: wb_pin_ocm=1,quantize=fp16
""")

_VITIS_AI = _table("""
    dpu                    str  isa   -  tt1  DPU identifier: DPUCZDX8G-zcu104
    build_dir              str  none  -  tt1  build folder, for debugging
    work_dir               str  none  -  tt1  work folder, for debugging
    export_runtime_module  str  none  -  tt1  file to write the runtime module to
    load_runtime_module    str  none  -  tt1  file to read the runtime module from
""")

# ONNX Runtime itself starts any number of threads. 1,024 is the number of processors that a process can
# be bound to (`CPU_SETSIZE` of glibc).
_ONNXRUNTIME = _table("""
    intra-op-threads    int>=0<=1024  soft  0      tt1  threads inside one operator; 0 lets onnxruntime choose
    intra-op-spinning   bool    soft  false  tt1  idle threads of a function busy-wait for its next operator or run
    optimization-level  int>=0  soft  99     tt1  graph optimisation: 0 none, 1 basic, 2 extended, 99 all
    provider            str        hard  CPU    tt1  execution provider: CPU, CUDA, TensorRT, OpenVINO, QNN, CoreML, ...
    provider-device     str        hard  -      tt1  device of a plugin provider: CPU, GPU, GPU.1, NPU
    provider-library    str        hard  -      tt1  file of a plugin provider
    provider-options    list[str]  hard  -      tt1  options of the provider: device_id=1
    cpu-fallback        bool       hard  false  tt1  operations that the provider refuses run on the CPU
""")

_OPENVINO = _table("""
    device-name            str    hard  CPU      tt1  device of OpenVINO: CPU, GPU, GPU.1, NPU, ...
    inference-num-threads  int>=0<=1024  soft  0        tt1  threads inside one operator; 0 lets OpenVINO choose
    num-streams            int>=0<=1024  soft  0        tt1  calls that are computed at once; 0 is one of all threads
    inference-precision    str:float32|float16|bfloat16  hard  float32  tt1  element type of sums and products
    cache-dir              str    none  -        tt1  folder in which OpenVINO stores compiled functions
""")

_LINK_PARAMS = _table("""
    link-params  bool  hard  false  v0.8  put parameters into the generated code
""")

_AOT = _table("""
    link-params               bool  hard  true    v0.9  put parameters into the generated code
    unpacked-api              bool  hard  false   v0.8  call operators with plain C arguments
    interface-api             str:packed|c   hard  packed  v0.8  entry point's interface: packed or c
    workspace-byte-alignment  int^2   hard  -       v0.9  alignment of workspaces in bytes
    constant-byte-alignment   int^2   hard  -       v0.9  alignment of constants in bytes
    workspace-io              bool  hard  false   tt1   plan places of inputs and outputs in the workspace too
""")

_SYSTEM_LIB = _table("""
    system-lib  bool  hard  false  v0.8  register functions statically
""")

_DASK = _table("""
    address   str        none  -      tt1  of the scheduler: tls://10.0.0.1:8786; without it, workers on this computer
    workers   list[str]  none  -      tt1  names or addresses of the workers that are the machines, in their order
    insecure  bool       none  false  tt1  connect without TLS: everyone who reaches the cluster can run code as you
""")


def _kind(
    name: str,
    device: str,
    keys: str,
    attributes: tuple[Attribute, ...] = (),
    *,
    until: str = "",
    can_host: bool = False,
    is_external: bool = False,
    hardware: str = "",
    doc: str,
) -> Kind:
    return Kind.of_library(
        name=name,
        device=device,
        keys=tuple(keys.split()),
        attributes=_BASE + attributes,
        until=until,
        can_host=can_host,
        is_external=is_external,
        hardware=hardware,
        doc=doc,
    )


_TARGETS = (
    _kind("llvm", "cpu", "cpu", _LLVM + _CPU, can_host=True, doc="a CPU, by LLVM"),
    _kind("c", "cpu", "cpu", _C + _CPU, can_host=True, doc="a CPU, by generated C"),
    _kind("cuda", "cuda", "cuda gpu", _CUDA + _UNITS, doc="an NVIDIA GPU, by CUDA C++"),
    _kind("nvptx", "cuda", "cuda gpu", _NVPTX + _UNITS, doc="an NVIDIA GPU, by LLVM"),
    _kind("rocm", "rocm", "rocm gpu", _ROCM + _UNITS, doc="an AMD GPU"),
    _kind("opencl", "opencl", "opencl gpu", _OPENCL + _UNITS, doc="a GPU, by OpenCL"),
    _kind("metal", "metal", "metal gpu", _METAL + _UNITS, doc="an Apple GPU"),
    _kind("vulkan", "vulkan", "vulkan gpu", _VULKAN + _UNITS, doc="a GPU, by SPIR-V"),
    _kind("webgpu", "webgpu", "webgpu gpu", _WEBGPU, doc="a GPU, from a browser"),
    _kind("hexagon", "hexagon", "hexagon cpu", _HEXAGON, can_host=True, doc="a Qualcomm Hexagon DSP"),
    _kind("trn", "trn", "", _TRN, doc="an AWS Trainium chip"),
    _kind("ext_dev", "ext_dev", "", _UNITS, doc="a third-party accelerator, such as VTA"),
    _kind("composite", "cpu", "", doc="a system of several targets"),
    _kind("test", "cpu", "", doc="TVM's own tests"),
    _kind("cuda_host", "cpu", "cpu", can_host=True, doc="host functions of CUDA, as CUDA C++"),
    _kind("opengl", "opengl", "opengl", until="v0.6", doc="a GPU, by OpenGL"),
    _kind("stackvm", "cpu", "cpu", until="v0.19", can_host=True, doc="TVM's interpreter"),
    _kind("hybrid", "cpu", "", until="v0.21", doc="Python source, for debugging"),
    _kind("aocl", "aocl", "aocl hls", until="v0.19", doc="an Intel FPGA"),
    _kind("aocl_sw_emu", "aocl", "aocl hls", until="v0.19", doc="an Intel FPGA, emulated"),
    _kind("sdaccel", "opencl", "sdaccel hls", until="v0.19", doc="a Xilinx FPGA"),
    _kind("ccompiler", "cpu", "", _CCOMPILER, until="v0.19", is_external=True, doc="external: plain C"),
    _kind("cmsis-nn", "cpu", "", _CMSIS_NN, until="v0.18", is_external=True, doc="external: CMSIS-NN for Arm Cortex-M"),
    _kind(
        "ethos-u",
        "cpu",
        "",
        _ETHOS_U,
        until="v0.18",
        is_external=True,
        hardware="an Arm Ethos-U NPU",
        doc="external: Arm Ethos-U",
    ),
    _kind(
        "mrvl",
        "cpu",
        "",
        _MRVL,
        until="v0.19",
        is_external=True,
        hardware="a Marvell MLIP accelerator",
        doc="external: Marvell MLIP",
    ),
    _kind(
        "ethos-n",
        "cpu",
        "",
        _ETHOS_N,
        until="v0.18",
        is_external=True,
        hardware="an Arm Ethos-N NPU",
        doc="external: Arm Ethos-N",
    ),
    _kind("compute-library", "cpu", "", until="v0.19", is_external=True, doc="external: Arm Compute Library"),
    _kind("bnns", "cpu", "", until="v0.19", is_external=True, doc="external: Apple BNNS"),
    _kind(
        "vitis-ai",
        "cpu",
        "",
        _VITIS_AI,
        until="v0.19",
        is_external=True,
        hardware="an AMD DPU",
        doc="external: AMD Vitis AI",
    ),
    _kind("dnnl", "cpu", "", is_external=True, doc="external: oneDNN"),
    _kind("example_target_hook", "cpu", "", _EXAMPLE, until="v0.19", is_external=True, doc="external: TVM's example"),
    _kind("cublas", "cuda", "", until="v0.19", is_external=True, doc="external: cuBLAS"),
    _kind("cudnn", "cuda", "", until="v0.19", is_external=True, doc="external: cuDNN"),
    _kind("cutlass", "cuda", "", _CUTLASS, until="v0.19", is_external=True, doc="external: CUTLASS"),
    _kind("tensorrt", "cuda", "", _TENSORRT, until="v0.19", is_external=True, doc="external: TensorRT"),
    _kind("clml", "opencl", "", until="v0.19", is_external=True, doc="external: Qualcomm CLML"),
    _kind("numpy", "cpu", "cpu", can_host=True, doc="this machine, by the ONNX reference evaluator"),
    _kind("onnxruntime", "cpu", "cpu", _ONNXRUNTIME, is_external=True, doc="external: ONNX Runtime and its providers"),
    _kind("openvino", "cpu", "cpu", _OPENVINO, is_external=True, doc="external: OpenVINO on CPUs, GPUs and NPUs"),
)

_EXECUTORS = (
    Kind.of_library(
        name="graph", role="executor", attributes=_LINK_PARAMS, doc="interpret a graph of calls (the default)"
    ),
    Kind.of_library(name="aot", role="executor", attributes=_AOT, doc="generated driver code, ahead of time"),
    Kind.of_library(name="vm", role="executor", doc="bytecode with control flow and dynamic shapes"),
)

_RUNTIMES = (
    Kind.of_library(name="python", role="runtime", doc="this Python process (the default)"),
    Kind.of_library(name="cpp", role="runtime", attributes=_SYSTEM_LIB, doc="TVM's C++ runtime"),
    Kind.of_library(name="crt", role="runtime", attributes=_SYSTEM_LIB, doc="bare C runtime for microcontrollers"),
    Kind.of_library(
        name="processes", role="runtime", is_distributed=True, doc="a process of this computer for each machine"
    ),
    Kind.of_library(
        name="dask", role="runtime", attributes=_DASK, is_distributed=True, doc="a Dask worker for each machine"
    ),
)

KINDS: tuple[Kind, ...] = _TARGETS + _EXECUTORS + _RUNTIMES
