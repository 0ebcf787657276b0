"""planish's own operators under torch: what each returns for fake tensors, its derivatives, its
sharding, and which way a call goes. Functions and modules stand on it."""
