/* The way in: the runtime gets a factory, which says that planish runs on the CPU and makes a
 * provider for each session. */
#include "planish_ort.h"

#include <stdlib.h>

#include "provider.h"

typedef struct factory {
    ort_factory base; /* first: the runtime's pointer is one to this */
    const ort_api *api;
} factory;

static const char *name_of(const ort_factory *self) {
    (void)self;
    return PLANISH_ORT_NAME;
}

static const char *vendor_of(const ort_factory *self) {
    (void)self;
    return "planish";
}

static uint32_t vendor_id_of(const ort_factory *self) {
    (void)self;
    return 0;
}

#define TEXT_OF(number) #number
#define VERSION_OF(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)
static const char *version_of(const ort_factory *self) {
    (void)self;
    return VERSION_OF(PLANISH_VERSION_MAJOR, PLANISH_VERSION_MINOR, PLANISH_VERSION_PATCH);
}

static ort_status *supported_devices(ort_factory *base, const ort_hardware *const *devices,
                                     size_t count, ort_device **made, size_t most, size_t *found) {
    const factory *self = (const factory *)base;
    ort_status *status = NULL;
    *found = 0;
    for (size_t i = 0; i < count && !status && *found < most; i++)
        if (self->api->hardware_type(devices[i]) == ORT_CPU) {
            status =
                self->api->ep_api()->create_device(base, devices[i], NULL, NULL, &made[*found]);
            *found += !status;
        }
    return status;
}

static ort_status *create_ep(ort_factory *base, const ort_hardware *const *devices,
                             const ort_pairs *const *metadata, size_t count,
                             const ort_session_options *options, const ort_logger *logger,
                             ort_ep **ep) {
    const factory *self = (const factory *)base;
    (void)devices, (void)metadata, (void)count, (void)options;
    *ep = provider_create(self->api, logger);
    return *ep ? NULL : self->api->create_status(ORT_FAIL, "planish: no memory for a provider");
}

static void release_ep(ort_factory *base, ort_ep *ep) {
    (void)base;
    provider_release(ep);
}

/* Memory is the runtime's own: there is no allocator, no transfer, no stream. */
static ort_status *create_allocator(ort_factory *base, const void *memory, const ort_pairs *options,
                                    void **made) {
    (void)base, (void)memory, (void)options;
    *made = NULL;
    return NULL;
}

static void release_allocator(ort_factory *base, void *allocator) {
    (void)base, (void)allocator;
}

static ort_status *create_data_transfer(ort_factory *base, void **made) {
    (void)base;
    *made = NULL;
    return NULL;
}

static bool is_stream_aware(const ort_factory *base) {
    (void)base;
    return false;
}

/* Version 1 of the runtime's table, which every runtime has, makes errors. */
static ort_status *too_old(const ort_api_base *base) {
    const ort_api *first = base->api(1);
    return first ? first->create_status(ORT_NOT_IMPLEMENTED,
                                        "planish wants ONNX Runtime 1.24 or later")
                 : NULL;
}

ort_status *planish_ort_create(const char *registered_name, const ort_api_base *base,
                               const ort_logger *logger, ort_factory **factories, size_t most,
                               size_t *count) {
    (void)registered_name, (void)logger;
    *count = 0;
    const ort_api *api = base->api(ORT_API_VERSION);
    if (!api)
        return too_old(base);
    factory *self = most > 0 ? calloc(1, sizeof *self) : NULL;
    if (!self)
        return api->create_status(ORT_FAIL, "planish: no room for a factory");
    *self = (factory){
        .base = {.version = ORT_API_VERSION,
                 .name = name_of,
                 .vendor = vendor_of,
                 .supported_devices = supported_devices,
                 .create_ep = create_ep,
                 .release_ep = release_ep,
                 .vendor_id = vendor_id_of,
                 .own_version = version_of,
                 .create_allocator = create_allocator,
                 .release_allocator = release_allocator,
                 .create_data_transfer = create_data_transfer,
                 .is_stream_aware = is_stream_aware},
        .api = api,
    };
    factories[0] = &self->base;
    *count = 1;
    return NULL;
}

ort_status *planish_ort_release(ort_factory *base) {
    free(base);
    return NULL;
}
