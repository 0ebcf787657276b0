/*
 * planish under ONNX Runtime, on the CPU: a plugin execution provider. These two are what the
 * runtime looks for in libplanish_ort.so under the names CreateEpFactories and ReleaseEpFactory
 * (plugin.c); their arguments are the runtime's own.
 */
#ifndef PLANISH_ORT_H
#define PLANISH_ORT_H

#include "planish.h"

struct ort_status;
struct ort_api_base;
struct ort_logger;
struct ort_factory;

PLANISH_API struct ort_status *planish_ort_create(const char *registered_name,
                                                  const struct ort_api_base *base,
                                                  const struct ort_logger *logger,
                                                  struct ort_factory **factories, size_t most,
                                                  size_t *count);
PLANISH_API struct ort_status *planish_ort_release(struct ort_factory *factory);

#endif
