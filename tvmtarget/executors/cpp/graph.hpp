// Run a program of executor `graph` and runtime `cpp` from C++17, with TVM's runtime and no Python.
//
//   tvmtarget::Program program("digits");           // an exported folder, or a tar of one
//   std::vector<tvmtarget::Value> results = program.run({tvmtarget::read_npy("input.npy")});
//
// Needs the headers and libraries of tvm_ffi, and libtvm_runtime. A program runs in one thread at a time: open it once
// for each thread. Errors are exceptions (`tvmtarget::Error`, and `tvm::ffi::Error` of TVM), whose messages name what
// failed and where.
#ifndef TVMTARGET_GRAPH_HPP_
#define TVMTARGET_GRAPH_HPP_

#include <sys/stat.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tvmtarget {

namespace ffi = tvm::ffi;

/// A value of a program: a tensor (`ffi::Tensor`), or what a leaf function returns besides: a shape, a number, a tuple.
using Value = ffi::Any;

/// A file that cannot be read, an input that does not fit, or a step that cannot run.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

[[noreturn]] inline void fail(const std::string& message) { throw Error(message); }

// ------------------------------------------------------------------------------------------------------------ tensors

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    // TVM requires 64 bytes of alignment, and `aligned_alloc` a size that is a multiple of it.
    std::size_t bytes = (ffi::GetDataSize(*tensor) + 63) / 64 * 64;
    tensor->data = std::aligned_alloc(64, bytes == 0 ? 64 : bytes);
    if (tensor->data == nullptr) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

using Shape = std::vector<std::int64_t>;

constexpr DLDevice kHost{kDLCPU, 0};

inline ffi::Tensor allocate(const Shape& shape, DLDataType dtype) {
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()), dtype, kHost);
}

inline Shape shape_of(const ffi::Tensor& tensor) { return Shape(tensor.shape().begin(), tensor.shape().end()); }

inline char* bytes_of(const ffi::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr()) + tensor.byte_offset();
}

inline std::int64_t product(const Shape& shape, std::size_t first, std::size_t last) {
  std::int64_t result = 1;
  for (std::size_t axis = first; axis < last; ++axis) result *= shape[axis];
  return result;
}

inline std::string text_of(const Shape& shape) {
  std::ostringstream text;
  text << "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text << (axis ? ", " : "") << shape[axis];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

struct Dtype {
  const char* name;  // of ONNX, in lower case
  const char* npy;   // of numpy, without the byte order
  DLDataType type;
};

inline const std::vector<Dtype>& dtypes() {
  static const std::vector<Dtype> all = {
      {"bool", "b1", {kDLBool, 8, 1}},     {"int8", "i1", {kDLInt, 8, 1}},      {"int16", "i2", {kDLInt, 16, 1}},
      {"int32", "i4", {kDLInt, 32, 1}},    {"int64", "i8", {kDLInt, 64, 1}},    {"uint8", "u1", {kDLUInt, 8, 1}},
      {"uint16", "u2", {kDLUInt, 16, 1}},  {"uint32", "u4", {kDLUInt, 32, 1}},  {"uint64", "u8", {kDLUInt, 64, 1}},
      {"float16", "f2", {kDLFloat, 16, 1}}, {"float32", "f4", {kDLFloat, 32, 1}},
      {"float64", "f8", {kDLFloat, 64, 1}},
  };
  return all;
}

inline bool same(DLDataType one, DLDataType other) {
  return one.code == other.code && one.bits == other.bits && one.lanes == other.lanes;
}

inline const Dtype& dtype_named(const std::string& name) {
  for (const Dtype& one : dtypes())
    if (name == one.name) return one;
  fail("element type '" + name + "' cannot be interpreted in C++");
}

inline const Dtype& dtype_of(DLDataType type) {
  for (const Dtype& one : dtypes())
    if (same(type, one.type)) return one;
  fail("a tensor has an element type that cannot be interpreted in C++");
}

template <typename T>
ffi::Tensor scalar(T number, DLDataType dtype, int rank) {
  ffi::Tensor tensor = allocate(Shape(rank, 1), dtype);
  std::memcpy(tensor.data_ptr(), &number, sizeof(T));
  return tensor;
}

/// Returns the values `number` of `axis`, or writes them if `is_write`; both are on the host.
inline void copy_slice(const ffi::Tensor& whole, std::size_t axis, std::int64_t number, const ffi::Tensor& slice,
                       bool is_write) {
  Shape shape = shape_of(whole);
  std::size_t element = ffi::GetDataSize(1, whole.dtype());
  std::size_t inner = product(shape, axis + 1, shape.size()) * element;
  std::int64_t outer = product(shape, 0, axis);
  for (std::int64_t at = 0; at < outer; ++at) {
    char* in_whole = bytes_of(whole) + (at * shape[axis] + number) * inner;
    char* in_slice = bytes_of(slice) + at * inner;
    std::memcpy(is_write ? in_whole : in_slice, is_write ? in_slice : in_whole, inner);
  }
}

// -------------------------------------------------------------------------------------------------------------- files

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::int64_t octal(const char* field, std::size_t size) {
  std::int64_t number = 0;
  for (std::size_t at = 0; at < size && field[at] >= '0' && field[at] <= '7'; ++at) number = number * 8 + field[at] - '0';
  return number;
}

/// Writes the files of an archive (POSIX ustar) into a folder; rejects names that lead out of it.
inline void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder) {
  std::string data = read_file(archive);
  for (std::size_t at = 0; at + 512 <= data.size() && data[at] != '\0';) {
    const char* header = data.data() + at;
    if (std::memcmp(header + 257, "ustar", 5) != 0) fail(archive.string() + " is not a tar archive");
    std::string name(header, strnlen(header, 100)), prefix(header + 345, strnlen(header + 345, 155));
    std::filesystem::path path = prefix.empty() ? name : prefix + "/" + name;
    std::int64_t size = octal(header + 124, 12);
    if (size < 0 || at + 512 + static_cast<std::size_t>(size) > data.size()) fail(archive.string() + " is damaged");
    bool is_inside = !path.is_absolute() && std::find(path.begin(), path.end(), "..") == path.end();
    if (header[156] == '0' || header[156] == '\0') {
      if (!is_inside) fail(archive.string() + " has a file outside of its folder: " + path.string());
      std::filesystem::create_directories((folder / path).parent_path());
      std::ofstream file(folder / path, std::ios::binary);
      file.write(header + 512, size);
      file.close();
      if (!file) fail("cannot write " + (folder / path).string());
    }
    at += 512 + (size + 511) / 512 * 512;
  }
}

/// An open program: a folder, or a new temporary one with the files of an archive, removed with this object.
class Folder {
 public:
  explicit Folder(const std::filesystem::path& path) : path_(path) {
    if (std::filesystem::is_directory(path)) return;
    std::string pattern = (std::filesystem::temp_directory_path() / "tvmtarget-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) fail("cannot create a folder such as " + pattern);
    path_ = pattern;
    is_temporary_ = true;
    try {
      unpack(path, path_);
    } catch (...) {
      std::filesystem::remove_all(path_);
      throw;
    }
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    if (is_temporary_) std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
  bool is_temporary_ = false;
};

}  // namespace detail

/// Reads an array of numpy's format (`.npy`, version 1 to 3, little-endian, in C order) as a tensor of this process.
inline ffi::Tensor read_npy(const std::filesystem::path& path) {
  using namespace detail;
  std::string data = read_file(path);
  auto damaged = [&](const std::string& what) { fail(path.string() + " cannot be read as .npy: " + what); };
  if (data.size() < 12 || data.compare(0, 6, "\x93NUMPY") != 0) damaged("it does not begin like one");
  auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(data[at])); };
  std::size_t begin = data[6] == 1 ? 10 : 12, length = byte(8) | byte(9) << 8;
  if (begin == 12) length |= byte(10) << 16 | byte(11) << 24;
  if (begin + length > data.size()) damaged("its header is too long");
  std::string header = data.substr(begin, length);
  auto value = [&](const std::string& key) {
    std::size_t at = header.find("'" + key + "'");
    if (at == std::string::npos) damaged("it has no " + key);
    at = header.find(':', at) + 1;
    return header.substr(header.find_first_not_of(' ', at));
  };
  std::string descr = value("descr");
  descr = descr.substr(1, descr.find(descr[0], 1) - 1);
  if (descr.size() != 3 || descr[0] == '>') damaged("its element type is " + descr);
  if (value("fortran_order").compare(0, 5, "False") != 0) damaged("it is in Fortran order");
  const Dtype* dtype = nullptr;
  for (const Dtype& one : dtypes())
    if (descr.substr(1) == one.npy) dtype = &one;
  if (dtype == nullptr) damaged("its element type is " + descr);
  std::string dims = value("shape");
  dims = dims.substr(1, dims.find(')') - 1);
  Shape shape;
  std::istringstream numbers(dims);
  for (std::string number; std::getline(numbers, number, ',');)
    if (number.find_first_not_of(' ') != std::string::npos) shape.push_back(std::stoll(number));
  ffi::Tensor tensor = allocate(shape, dtype->type);
  std::size_t bytes = ffi::GetDataSize(tensor.numel(), tensor.dtype());
  if (data.size() - begin - length != bytes) damaged("it has another size than its shape");
  std::memcpy(tensor.data_ptr(), data.data() + begin + length, bytes);
  return tensor;
}

/// Writes a tensor of this process in numpy's format.
inline void write_npy(const std::filesystem::path& path, const ffi::Tensor& tensor) {
  using namespace detail;
  Shape shape = shape_of(tensor);
  std::string header = std::string("{'descr': '") + (ffi::GetDataSize(1, tensor.dtype()) == 1 ? '|' : '<') +
                       dtype_of(tensor.dtype()).npy + "', 'fortran_order': False, 'shape': " + text_of(shape) + ", }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  // Under another name until it is complete; what is no file, such as /dev/stdout, is written directly.
  bool is_file = !std::filesystem::exists(path) || std::filesystem::is_regular_file(path);
  std::filesystem::path partial = path;
  if (is_file) partial += ".partial";
  std::ofstream file(partial, std::ios::binary);
  file << "\x93NUMPY" << '\1' << '\0' << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(bytes_of(tensor), static_cast<std::streamsize>(ffi::GetDataSize(tensor.numel(), tensor.dtype())));
  file.close();
  std::error_code problem;
  if (file && is_file) std::filesystem::rename(partial, path, problem);
  if (file && !problem) return;
  std::error_code ignored;
  if (is_file) std::filesystem::remove(partial, ignored);
  fail("cannot write " + path.string());
}

namespace detail {

// ------------------------------------------------------------------------------------------------------------ program

using Object = ffi::Map<ffi::String, ffi::Any>;
using List = ffi::Array<ffi::Any>;

inline ffi::Any member(const Object& object, const char* name) {
  auto found = object.find(name);
  return found == object.end() ? ffi::Any() : (*found).second;
}
inline std::string text(const ffi::Any& value) {
  return value == nullptr ? std::string() : std::string(value.cast<ffi::String>());
}
inline bool flag(const ffi::Any& value) { return value != nullptr && value.cast<bool>(); }
inline List list(const ffi::Any& value) { return value == nullptr ? List() : value.cast<List>(); }
inline std::vector<std::string> texts(const ffi::Any& value) {
  std::vector<std::string> all;
  for (const ffi::Any& one : list(value)) all.push_back(text(one));
  return all;
}

/// An input or output; a dimension is its size, a name, or empty if it may be any.
struct Signature {
  std::string name;
  std::optional<DLDataType> dtype;
  bool has_shape = false;
  std::vector<std::pair<std::int64_t, std::string>> shape;  // size, or -1 and the name

  explicit Signature(const Object& object) : name(text(member(object, "name"))) {
    ffi::Any dtype_name = member(object, "dtype"), dims = member(object, "shape");
    if (dtype_name != nullptr) dtype = dtype_named(text(dtype_name)).type;
    has_shape = dims != nullptr;
    for (const ffi::Any& dim : list(dims)) {
      if (dim == nullptr) shape.emplace_back(-1, "");
      else if (auto size = dim.as<std::int64_t>()) shape.emplace_back(*size, "");
      else shape.emplace_back(-1, text(dim));
    }
  }
};

constexpr int kAbsent = -1;  // slot of an operand or result without a name

struct Step;

/// Steps in order. Values are in numbered slots of the driver's frame; nested bodies use the same frame.
struct Block {
  std::vector<int> params, results;
  std::vector<Step> steps;
};

struct Axis {
  std::int64_t axis;
  bool is_reversed;
};

struct Control {
  std::string kind, op;
  std::vector<Block> bodies;
  std::vector<Axis> cut, joined;
  std::vector<Signature> empty;
  std::vector<int> param_ranks;
};

struct Leaf {
  ffi::Function call;
  std::string site;
  DLDevice device;
  std::size_t results;
  std::vector<std::size_t> never_empty;  // parameters that must have elements
};

struct Driver;

struct Step {
  const Leaf* leaf = nullptr;
  const Driver* driver = nullptr;
  std::optional<Control> control;
  std::string name;  // for messages
  std::vector<int> inputs, outputs, free;
  DLDevice device = kHost;  // of a copy
  bool once = false;
};

struct Driver : Block {
  int slots = 0;
  std::vector<std::pair<int, Value>> constants;
  mutable std::map<int, Value> copied;  // copies of constants, by the slot of the result
};

/// Returns the tensor that a value is; none for null, which TVM takes for one.
inline std::optional<ffi::Tensor> as_tensor(const Value& value) {
  return value == nullptr ? std::nullopt : value.as<ffi::Tensor>();
}

inline ffi::Tensor tensor_of(const Value& value, const std::string& what) {
  if (auto tensor = as_tensor(value)) return *tensor;
  fail(what + " is not a tensor");
}

inline DLDevice device_of(const ffi::Any& value) {
  List device = value.cast<List>();
  return DLDevice{static_cast<DLDeviceType>(device[0].cast<int>()), device[1].cast<int>()};
}

inline ffi::Tensor to_device(const ffi::Tensor& tensor, DLDevice device) {
  static const ffi::Function copy = ffi::Function::GetGlobalRequired("vm.builtin.to_device");
  return copy(tensor, static_cast<int>(device.device_type), device.device_id).cast<ffi::Tensor>();
}

/// Calls a leaf function with the stack at a fixed place of a page, as where it is differs by process.
///
/// Kernels spill vectors of 32 bytes into frames that LLVM aligns at 16. Where they are no multiple of 32, spilled vectors
/// cross cache lines, and some of them pages: squeezenet takes 1.06 to 1.6 of its time. The 16 bytes make up for the
/// frames of TVM 0.27 between this one and the kernel's.
[[gnu::noinline]] inline void call_at_page(const ffi::Function& function, const std::vector<ffi::AnyView>& arguments,
                                           ffi::Any* result) {
#ifdef __GNUC__
  [[maybe_unused]] alignas(4096) volatile char page[1];
  auto* gap = static_cast<volatile char*>(__builtin_alloca(1));  // 16 bytes, as stacks are aligned
  page[0] = 0;
  *gap = 0;
  function.CallPacked(arguments.data(), arguments.size(), result);
  page[0] = 1;  // no tail call
#else
  function.CallPacked(arguments.data(), arguments.size(), result);
#endif
}

}  // namespace detail

/// An exported program; see the top of this file.
class Program {
 public:
  /// Opens a folder or a tar file; nothing of it runs before `run`. It holds native code: open only what you trust.
  explicit Program(const std::filesystem::path& path) : folder_(path) {
    using namespace detail;
    Object manifest = json("manifest.json"), program = json("program.json");
    if (member(manifest, "format").cast<std::int64_t>() != 1) fail("manifest.json is of another format than 1");
    for (const auto& [memory, device] : member(manifest, "memories").cast<Object>()) memories_[memory] = device_of(device);
    for (const auto& [name, facts] : member(manifest, "leaves").cast<Object>())
      leaves_.emplace(std::string(name), open_leaf(facts.cast<Object>()));
    for (const auto& [name, file] : member(manifest, "constants").cast<Object>())
      constants_.emplace(std::string(name), read_npy(folder_ / text(file)));
    for (const ffi::Any& one : list(member(program, "inputs"))) inputs_.emplace_back(one.cast<Object>());
    for (const ffi::Any& one : list(member(program, "outputs"))) outputs_.emplace_back(one.cast<Object>());
    Object drivers = member(program, "drivers").cast<Object>();
    for (const auto& [name, driver] : drivers) drivers_[name];  // first, as drivers refer to each other
    for (const auto& [name, driver] : drivers) read_driver(drivers_[name], driver.cast<Object>());
    std::string entry = text(member(program, "entry"));
    if (drivers_.count(entry) == 0) {  // a program on one leaf
      Driver& only = drivers_[entry];
      Step step;
      step.leaf = &leaves_.at(entry);
      step.name = entry;
      for (; only.slots < static_cast<int>(inputs_.size()); ++only.slots) step.inputs.push_back(only.slots);
      only.params = step.inputs;
      for (std::size_t count = 0; count < outputs_.size(); ++count) step.outputs.push_back(only.slots++);
      only.results = step.outputs;
      only.steps.push_back(std::move(step));
    }
    entry_ = &drivers_.at(entry);
  }

  /// Names of the inputs, in order.
  std::vector<std::string> inputs() const { return names(inputs_); }
  /// Names of the outputs, in order.
  std::vector<std::string> outputs() const { return names(outputs_); }

  /// Runs once: takes the inputs in order, and returns the outputs in order, in this process's memory.
  std::vector<Value> run(const std::vector<Value>& inputs) {
    std::vector<Value> results = run_driver(*entry_, inputs, checked_sizes(inputs));
    for (Value& result : results)
      if (auto tensor = detail::as_tensor(result); tensor && tensor->device().device_type != kDLCPU)
        result = detail::to_device(*tensor, detail::kHost);
    return results;
  }

 private:
  using Values = std::vector<Value>;
  using Sizes = std::map<std::string, std::int64_t>;  // of symbolic dimensions, by name

  detail::Folder folder_;
  std::map<std::string, DLDevice> memories_;
  std::map<std::string, detail::Leaf> leaves_;
  std::map<std::string, ffi::Tensor> constants_;
  std::map<std::string, detail::Driver> drivers_;
  std::vector<detail::Signature> inputs_, outputs_;
  const detail::Driver* entry_ = nullptr;

  static std::vector<std::string> names(const std::vector<detail::Signature>& signatures) {
    std::vector<std::string> all;
    for (const detail::Signature& one : signatures) all.push_back(one.name);
    return all;
  }

  // ------------------------------------------------------------------------------------------------------ reading

  detail::Object json(const std::string& name) const {
    ffi::String problem;
    ffi::Any value = ffi::json::Parse(detail::read_file(folder_ / name), &problem);
    if (problem.size() != 0) detail::fail(name + " is damaged: " + std::string(problem));
    return value.cast<detail::Object>();
  }

  detail::Leaf open_leaf(const detail::Object& facts) const {
    using namespace detail;
    ffi::Module library = ffi::Module::LoadFromFile((folder_ / text(member(facts, "file"))).string());
    ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    DLDevice device = device_of(member(facts, "device"));
    constexpr int kPooled = 2;  // tvm::runtime::memory::AllocatorType
    std::vector<ffi::AnyView> arguments;
    int type = device.device_type, number = device.device_id, host = kDLCPU, first = 0, pooled = kPooled;
    arguments = {type, number, pooled};
    if (device.device_type != kDLCPU) arguments.insert(arguments.end(), {host, first, pooled});
    ffi::Any none;
    machine->GetFunction("vm_initialization").value().CallPacked(arguments.data(), arguments.size(), &none);
    std::vector<std::size_t> never_empty;
    for (const ffi::Any& position : list(member(facts, "never_empty"))) never_empty.push_back(position.cast<int>());
    auto results = static_cast<std::size_t>(member(facts, "results").cast<int>());
    return Leaf{machine->GetFunction("main").value(), text(member(facts, "site")), device, results, never_empty};
  }

  using Slots = std::map<std::string, int>;

  void read_driver(detail::Driver& driver, const detail::Object& object) {
    using namespace detail;
    Slots slots;
    static_cast<Block&>(driver) = read_block(object, slots);
    for (const std::string& name : texts(member(object, "constants")))
      if (slots.count(name)) driver.constants.emplace_back(slots[name], constants_.at(name));
    driver.slots = static_cast<int>(slots.size());
  }

  static int slot(Slots& slots, const std::string& name) {
    if (name.empty()) return detail::kAbsent;
    return slots.emplace(name, static_cast<int>(slots.size())).first->second;
  }
  static std::vector<int> all_slots(Slots& slots, const ffi::Any& names) {
    std::vector<int> all;
    for (const std::string& name : detail::texts(names)) all.push_back(slot(slots, name));
    return all;
  }

  detail::Block read_block(const detail::Object& object, Slots& slots) {
    using namespace detail;
    Block block;
    block.params = all_slots(slots, member(object, "params"));
    for (const ffi::Any& one : list(member(object, "steps"))) block.steps.push_back(read_step(one.cast<Object>(), slots));
    block.results = all_slots(slots, member(object, "results"));
    return block;
  }

  detail::Step read_step(const detail::Object& object, Slots& slots) {
    using namespace detail;
    Step step;
    step.inputs = all_slots(slots, member(object, "inputs"));
    step.outputs = all_slots(slots, member(object, "outputs"));
    step.free = all_slots(slots, member(object, "free"));
    step.once = flag(member(object, "once"));
    std::string call = text(member(object, "call"));
    if (!call.empty()) {
      step.name = call;
      auto leaf = leaves_.find(call);
      auto driver = drivers_.find(call);
      if (leaf != leaves_.end()) step.leaf = &leaf->second;
      else if (driver != drivers_.end()) step.driver = &driver->second;
      else fail("program.json calls '" + call + "', which is no function of the program");
    } else if (ffi::Any control = member(object, "control"); control != nullptr) {
      step.control = read_control(control.cast<Object>(), slots);
      step.name = step.control->op;
    } else if (ffi::Any memory = member(object, "dst"); memory != nullptr) {
      auto device = memories_.find(text(memory));
      if (device != memories_.end()) step.device = device->second;
    } else {
      fail("program.json transfers a value between machines, which is not done in C++");
    }
    return step;
  }

  detail::Control read_control(const detail::Object& object, Slots& slots) {
    using namespace detail;
    Control control;
    control.kind = text(member(object, "kind"));
    control.op = text(member(object, "op"));
    for (const ffi::Any& body : list(member(object, "bodies")))
      control.bodies.push_back(read_block(body.cast<Object>(), slots));
    for (auto [name, axes] : {std::pair("cut", &control.cut), std::pair("joined", &control.joined)})
      for (const ffi::Any& one : list(member(object, name))) {
        Object axis = one.cast<Object>();
        axes->push_back({member(axis, "axis").cast<std::int64_t>(), flag(member(axis, "is_reversed"))});
      }
    for (const ffi::Any& one : list(member(object, "empty"))) control.empty.emplace_back(one.cast<Object>());
    for (const ffi::Any& rank : list(member(object, "param_ranks")))
      control.param_ranks.push_back(rank == nullptr ? 0 : rank.cast<int>());
    return control;
  }

  // ------------------------------------------------------------------------------------------------------ running

  /// Checks the inputs, and returns the sizes of their symbolic dimensions.
  Sizes checked_sizes(const std::vector<Value>& inputs) const {
    using namespace detail;
    if (inputs.size() != inputs_.size())
      fail(std::to_string(inputs.size()) + " inputs are given, and the program takes " + std::to_string(inputs_.size()));
    Sizes sizes;
    for (std::size_t at = 0; at < inputs.size(); ++at) {
      const Signature& signature = inputs_[at];
      if (!signature.dtype) continue;
      std::string what = "input '" + signature.name + "'";
      ffi::Tensor tensor = tensor_of(inputs[at], what);
      if (!same(tensor.dtype(), *signature.dtype))
        fail(what + " is " + dtype_of(tensor.dtype()).name + ", not " + dtype_of(*signature.dtype).name);
      Shape shape = shape_of(tensor);
      bool fits = !signature.has_shape || shape.size() == signature.shape.size();
      for (std::size_t axis = 0; fits && signature.has_shape && axis < shape.size(); ++axis) {
        const auto& [size, name] = signature.shape[axis];
        // Equal symbols are one dimension (ONNX, dim_param): the first input fixes its size for all others.
        std::int64_t wanted = size;
        if (size < 0) wanted = name.empty() ? shape[axis] : sizes.emplace(name, shape[axis]).first->second;
        fits = shape[axis] == wanted;
      }
      if (!fits) fail(what + " has shape " + text_of(shape) + ", which does not fit the program");
      if (tensor.numel() == 0) continue;
      if (tensor.data_ptr() == nullptr) fail(what + " has no memory: its data pointer is null");
      if (!tensor.IsContiguous()) fail(what + " has strides; copy it into one piece of memory");
    }
    return sizes;
  }

  Values run_driver(const detail::Driver& driver, const Values& inputs, const Sizes& sizes) {
    Values frame(driver.slots);
    for (const auto& [slot, value] : driver.constants) frame[slot] = value;
    return run_block(driver, driver, inputs, frame, sizes);
  }

  Values run_block(const detail::Driver& driver, const detail::Block& block, const Values& inputs, Values& frame,
                   const Sizes& sizes) {
    for (std::size_t at = 0; at < inputs.size(); ++at) frame[block.params[at]] = inputs[at];
    for (const detail::Step& step : block.steps) {
      Values results = run_step(driver, step, frame, sizes);
      for (std::size_t at = 0; at < results.size() && at < step.outputs.size(); ++at)
        if (step.outputs[at] != detail::kAbsent) frame[step.outputs[at]] = std::move(results[at]);
      for (int slot : step.free) frame[slot] = nullptr;
    }
    return read(block.results, frame);
  }

  static Values read(const std::vector<int>& slots, const Values& frame) {
    Values values;
    values.reserve(slots.size());
    for (int slot : slots) values.push_back(slot == detail::kAbsent ? Value() : frame[slot]);
    return values;
  }

  Values run_step(const detail::Driver& driver, const detail::Step& step, Values& frame, const Sizes& sizes) {
    Values inputs = read(step.inputs, frame);
    if (step.leaf != nullptr) return run_leaf(*step.leaf, step, inputs);
    if (step.driver != nullptr) return run_driver(*step.driver, inputs, sizes);
    if (step.control) {
      const std::string& kind = step.control->kind;
      if (kind == "branch") return run_branch(driver, *step.control, inputs, frame, sizes);
      return kind == "loop" ? run_loop(driver, *step.control, inputs, frame, sizes)
                            : run_scan(driver, *step.control, inputs, frame, sizes);
    }
    if (!step.once) return {copy(inputs[0], step.device)};
    auto known = driver.copied.find(step.outputs[0]);
    if (known == driver.copied.end())
      known = driver.copied.emplace(step.outputs[0], copy(inputs[0], step.device)).first;
    return {known->second};
  }

  // Values are never changed in place, so that memories of CPUs share them.
  static Value copy(const Value& value, DLDevice device) {
    auto tensor = detail::as_tensor(value);
    if (!tensor) return value;
    DLDevice here = tensor->device();
    bool is_there = here.device_type == device.device_type && here.device_id == device.device_id;
    return is_there ? value : Value(detail::to_device(*tensor, device));
  }

  static Values run_leaf(const detail::Leaf& leaf, const detail::Step& step, Values inputs) {
    auto failed = [&](const std::string& reason) {
      detail::fail("function '" + step.name + "' of @" + (leaf.site.empty() ? "." : leaf.site) + " failed: " + reason);
    };
    for (std::size_t position : leaf.never_empty)
      if (detail::tensor_of(inputs[position], "an input").numel() == 0)
        failed("input " + std::to_string(position) + " has no elements, and tvm would compute no result from it");
    if (leaf.device.device_type != kDLCPU)
      for (Value& input : inputs) input = copy(input, leaf.device);
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    ffi::Any result;
    try {
      detail::call_at_page(leaf.call, arguments, &result);
    } catch (const ffi::Error& error) {
      failed(error.message());
    }
    auto fields = result.as<ffi::Array<ffi::Any>>();
    // Of one result, only a tuple of one tensor is unpacked.
    bool is_one = leaf.results == 1 && (!fields || fields->size() != 1 || !detail::as_tensor((*fields)[0]));
    if (is_one || !fields) return {result};
    return Values(fields->begin(), fields->end());
  }

  static std::int64_t number_of(const Value& value, const detail::Control& control) {
    using namespace detail;
    ffi::Tensor tensor = tensor_of(copy(value, kHost), "what decides '" + control.op + "'");
    if (tensor.numel() != 1)
      fail("'" + control.op + "' is decided by one element, not by " + std::to_string(tensor.numel()) + " of shape " +
           text_of(shape_of(tensor)));
    if (tensor.dtype().bits == 64) return *reinterpret_cast<std::int64_t*>(bytes_of(tensor));
    if (tensor.dtype().bits == 32) return *reinterpret_cast<std::int32_t*>(bytes_of(tensor));
    return *bytes_of(tensor);
  }

  Values run_branch(const detail::Driver& driver, const detail::Control& control, const Values& inputs, Values& frame,
                    const Sizes& sizes) {
    return run_block(driver, control.bodies[number_of(inputs[0], control) != 0 ? 0 : 1], {}, frame, sizes);
  }

  // ONNX, Loop: operands are the trip count and the condition, both optional, then carried values; a body gets the
  // iteration number and the condition, and returns the next condition, the carried values and the values to stack.
  Values run_loop(const detail::Driver& driver, const detail::Control& control, const Values& inputs, Values& frame,
                  const Sizes& sizes) {
    using namespace detail;
    std::optional<std::int64_t> limit;
    if (inputs[0] != nullptr) limit = number_of(inputs[0], control);
    bool goes_on = inputs[1] == nullptr || number_of(inputs[1], control) != 0;
    Values carried(inputs.begin() + 2, inputs.end());
    std::vector<std::vector<ffi::Tensor>> slices(control.joined.size());
    for (std::int64_t number = 0; goes_on && (!limit || number < *limit); ++number) {
      Values arguments = {scalar<std::int64_t>(number, {kDLInt, 64, 1}, control.param_ranks[0]),
                          scalar<char>(goes_on, {kDLBool, 8, 1}, control.param_ranks[1])};
      arguments.insert(arguments.end(), carried.begin(), carried.end());
      Values results = run_block(driver, control.bodies[0], arguments, frame, sizes);
      goes_on = number_of(results[0], control) != 0;
      std::size_t first = 1 + carried.size();
      std::copy(results.begin() + 1, results.begin() + first, carried.begin());
      collect(slices, results, first, control);
    }
    return with_joined(std::move(carried), slices, control, sizes);
  }

  // ONNX, Scan (since version 9): operands are states, then values to slice.
  Values run_scan(const detail::Driver& driver, const detail::Control& control, const Values& inputs, Values& frame,
                  const Sizes& sizes) {
    using namespace detail;
    std::size_t count = inputs.size() - control.cut.size();
    Values states(inputs.begin(), inputs.begin() + count);
    std::vector<ffi::Tensor> given;
    std::optional<std::int64_t> length;
    for (std::size_t at = 0; at < control.cut.size(); ++at) {
      given.push_back(tensor_of(copy(inputs[count + at], kHost), "what '" + control.op + "' slices"));
      std::int64_t size = given[at].shape()[axis_in(control.cut[at], given[at].ndim())];
      if (length && *length != size)
        fail("'" + control.op + "' is given " + std::to_string(*length) + " and " + std::to_string(size) +
             " slices of its inputs, which must be equally many");
      length = size;
    }
    std::vector<std::vector<ffi::Tensor>> slices(control.joined.size());
    for (std::int64_t number = 0; number < length.value_or(0); ++number) {
      Values arguments = states;
      for (std::size_t at = 0; at < given.size(); ++at)
        arguments.push_back(slice(given[at], axis_in(control.cut[at], given[at].ndim()),
                                  control.cut[at].is_reversed ? *length - 1 - number : number));
      Values results = run_block(driver, control.bodies[0], arguments, frame, sizes);
      std::copy(results.begin(), results.begin() + count, states.begin());
      collect(slices, results, count, control);
    }
    return with_joined(std::move(states), slices, control, sizes);
  }

  static std::size_t axis_in(const detail::Axis& axis, std::int64_t rank) {
    std::int64_t at = axis.axis < 0 ? axis.axis + rank : axis.axis;
    if (at < 0 || at >= rank) detail::fail("a scan slices axis " + std::to_string(axis.axis) + " of another rank");
    return static_cast<std::size_t>(at);
  }

  static ffi::Tensor slice(const ffi::Tensor& whole, std::size_t axis, std::int64_t number) {
    detail::Shape shape = detail::shape_of(whole);
    shape.erase(shape.begin() + axis);
    ffi::Tensor one = detail::allocate(shape, whole.dtype());
    detail::copy_slice(whole, axis, number, one, false);
    return one;
  }

  static void collect(std::vector<std::vector<ffi::Tensor>>& slices, const Values& results, std::size_t first,
                      const detail::Control& control) {
    for (std::size_t at = 0; at < slices.size(); ++at)
      slices[at].push_back(detail::tensor_of(copy(results[first + at], detail::kHost), "what '" + control.op + "' stacks"));
  }

  static Values with_joined(Values values, const std::vector<std::vector<ffi::Tensor>>& slices,
                            const detail::Control& control, const Sizes& sizes) {
    for (std::size_t at = 0; at < slices.size(); ++at)
      values.push_back(join(slices[at], control.joined[at], control.empty[at], control, sizes));
    return values;
  }

  static ffi::Tensor join(const std::vector<ffi::Tensor>& slices, const detail::Axis& axis,
                          const detail::Signature& empty, const detail::Control& control, const Sizes& sizes) {
    using namespace detail;
    Shape shape;
    if (slices.empty()) {  // dimensions that no input has are 0, as in onnxruntime
      for (const auto& [size, name] : empty.shape) {
        auto known = sizes.find(name);
        shape.push_back(known != sizes.end() ? known->second : std::max<std::int64_t>(size, 0));
      }
      if (!empty.has_shape) shape = {0};
    } else {
      shape = shape_of(slices[0]);
    }
    std::int64_t rank = static_cast<std::int64_t>(shape.size()) + (slices.empty() ? 0 : 1);
    std::size_t at = axis_in(axis, rank);
    if (slices.empty()) {
      shape[at] = 0;
      return allocate(shape, empty.dtype.value_or(DLDataType{kDLFloat, 32, 1}));
    }
    Shape first = shape;
    shape.insert(shape.begin() + at, static_cast<std::int64_t>(slices.size()));
    ffi::Tensor whole = allocate(shape, slices[0].dtype());
    for (std::size_t number = 0; number < slices.size(); ++number) {
      if (shape_of(slices[number]) != first)
        fail("'" + control.op + "' stacks slices of shapes " + text_of(first) + " and " +
             text_of(shape_of(slices[number])));
      copy_slice(whole, at, axis.is_reversed ? slices.size() - 1 - number : number, slices[number], true);
    }
    return whole;
  }
};

}  // namespace tvmtarget

#endif  // TVMTARGET_GRAPH_HPP_
