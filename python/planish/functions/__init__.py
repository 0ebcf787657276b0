"""planish's functions: arguments are checked here, and each is one call of the operators."""
