"""Exchange of targets with TVM: its values, command lines, saved files and historic spellings."""
