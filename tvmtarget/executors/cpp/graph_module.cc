// The interpreter of `graph.hpp` as a library of TVM's foreign-function interface, which Python opens.
#include <memory>
#include <string>

#include "graph.hpp"

namespace {

/// Opens a program; returns a function that takes its inputs and returns an array of its outputs.
tvm::ffi::Function open_program(const tvm::ffi::String& path) {
  auto program = std::make_shared<tvmtarget::Program>(std::string(path));
  return tvm::ffi::Function::FromPacked([program](tvm::ffi::PackedArgs inputs, tvm::ffi::Any* result) {
    std::vector<tvmtarget::Value> values;
    for (int at = 0; at < inputs.size(); ++at) values.emplace_back(inputs[at]);
    try {
      std::vector<tvmtarget::Value> results = program->run(values);
      *result = tvm::ffi::Array<tvm::ffi::Any>(results.begin(), results.end());
    } catch (const tvmtarget::Error& error) {
      TVM_FFI_THROW(RuntimeError) << error.what();
    }
  });
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(open_program, open_program);
