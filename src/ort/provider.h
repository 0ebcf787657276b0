/* planish as an execution provider of one session. */
#ifndef PLANISH_ORT_PROVIDER_H
#define PLANISH_ORT_PROVIDER_H

#include "ort_api.h"

#define PLANISH_ORT_NAME "PlanishExecutionProvider"

/* NULL where there is no memory. */
ort_ep *provider_create(const ort_api *api, const ort_logger *logger);
void provider_release(ort_ep *ep);

#endif
