"""The bridge to TVM's programs: Relax functions and TIR code, read and written without loss."""
