// Run an exported program of executor `graph` and runtime `cpp`:
//
//   run_graph PROGRAM INPUT.npy ... OUTPUT_FOLDER
//
// PROGRAM is the folder or tar file that `export` wrote; OUTPUT_FOLDER gets one .npy for each output.
#include <exception>
#include <filesystem>
#include <iostream>
#include <vector>

#include "graph.hpp"

int main(int count, char** words) {
  try {
    if (count < 3) throw tvmtarget::Error("usage: run_graph PROGRAM INPUT.npy ... OUTPUT_FOLDER");
    tvmtarget::Program program(words[1]);
    std::vector<tvmtarget::Value> inputs;
    for (int at = 2; at < count - 1; ++at) inputs.emplace_back(tvmtarget::read_npy(words[at]));
    std::vector<tvmtarget::Value> results = program.run(inputs);
    std::filesystem::path folder = words[count - 1];
    for (std::size_t at = 0; at < results.size(); ++at)
      tvmtarget::write_npy(folder / (std::to_string(at) + ".npy"), results[at].cast<tvm::ffi::Tensor>());
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
