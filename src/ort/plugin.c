/* libplanish_ort.so: the names that ONNX Runtime looks for in a library of execution providers. All
 * else is in libplanish.so, which this is linked with. */
#include "planish_ort.h"

PLANISH_API struct ort_status *CreateEpFactories(const char *registered_name,
                                                 const struct ort_api_base *base,
                                                 const struct ort_logger *logger,
                                                 struct ort_factory **factories, size_t most,
                                                 size_t *count);
PLANISH_API struct ort_status *ReleaseEpFactory(struct ort_factory *factory);

struct ort_status *CreateEpFactories(const char *registered_name, const struct ort_api_base *base,
                                     const struct ort_logger *logger,
                                     struct ort_factory **factories, size_t most, size_t *count) {
    return planish_ort_create(registered_name, base, logger, factories, most, count);
}

struct ort_status *ReleaseEpFactory(struct ort_factory *factory) {
    return planish_ort_release(factory);
}
