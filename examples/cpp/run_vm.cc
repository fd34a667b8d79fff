// Run a shared library that executor `vm` exported, by TVM's runtime alone:
//
//   run_vm LIBRARY.so INPUT.npy OUTPUT.npy
//
// The program has one input and one output, and runs on the CPU. `graph.hpp` is included for .npy files only.
#include <exception>
#include <iostream>

#include "graph.hpp"

namespace ffi = tvm::ffi;

int main(int count, char** words) {
  try {
    if (count != 4) throw tvmtarget::Error("usage: run_vm LIBRARY.so INPUT.npy OUTPUT.npy");
    ffi::Module library = ffi::Module::LoadFromFile(words[1]);
    ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
    const int pooled = 2;  // kind of allocator, tvm::runtime::memory::AllocatorType
    machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, pooled);
    ffi::Tensor result = machine->GetFunction("main").value()(tvmtarget::read_npy(words[2])).cast<ffi::Tensor>();
    tvmtarget::write_npy(words[3], result);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
