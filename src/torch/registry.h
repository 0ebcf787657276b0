/* What the registrations of torch's operators and of planish's own share. */
#ifndef PLANISH_TORCH_REGISTRY_H
#define PLANISH_TORCH_REGISTRY_H

#include "aoti.h"

/* Tests what planish calls of torch, once; nothing of planish's is registered before. */
planish_status registry_prepare(message error);

#endif
