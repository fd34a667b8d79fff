"""Targets as TVM's versions wrote and read them."""
