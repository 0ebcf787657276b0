"""``make demo``, ``planish model``: planish under real models, checked, timed and drawn."""
