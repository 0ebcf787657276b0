"""What Python knows of where the library has kernels, because a graph that is traced has sizes that
are no numbers, of which nobody can be asked. tests/torch/test_limits_of_kernels.py holds each
against C."""

from __future__ import annotations

__all__ = ["ACTIVATED_BYTES", "FEW_ELEMENTS", "GENERAL_ELEMENTS", "IMAGE_PIXELS"]

#: With more elements than this the general kernels take longer than torch's operators
#: (src/bound_call.c).
GENERAL_ELEMENTS = 32768

#: Channels last: of more elements than these planish under torch's operator may hand the call to
#: torch's kernel (src/torch/group_faster.c), which a module of planish's does not where planish is
#: disabled.
FEW_ELEMENTS = 32768

#: Longer rows have a GPU's fast kernels for an activation in the forward alone, or on some GPUs.
ACTIVATED_BYTES = 1 << 14

#: Images of fewer pixels have no kernels of their own (planish.h, planish_norm).
IMAGE_PIXELS = 4
