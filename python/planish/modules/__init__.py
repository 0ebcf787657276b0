"""planish's modules: parameters and options of the functions."""
