"""libplanish.so from Python: found and loaded, its structs, its switch under torch's operators."""
