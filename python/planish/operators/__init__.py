"""planish's own operators under torch: what each returns for fake tensors, its derivatives, its
sharding, and which way a call goes. Functions and modules stand on it."""

from planish.operators import ops as ops
from planish.operators import sharding as sharding
from planish.operators import torchs_backwards as torchs_backwards
from planish.operators import traced_rms as traced_rms
