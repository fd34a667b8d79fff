"""Apache TVM as a code generator for llvm, cuda and c leaves."""
