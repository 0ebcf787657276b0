"""apex.contrib: layer_norm and group_norm of it."""
