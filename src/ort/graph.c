#include "graph.h"

#include <string.h>

bool graph_ok(const ort_api *api, ort_status *status) {
    if (!status)
        return true;
    api->release_status(status);
    return false;
}

static const char *text_or(const ort_api *api, ort_status *status, const char *const *text) {
    return graph_ok(api, status) && *text ? *text : "";
}

const char *graph_operator(const ort_api *api, const ort_node *node) {
    const char *name = NULL;
    return text_or(api, api->node_operator(node, &name), &name);
}

const char *graph_domain(const ort_api *api, const ort_node *node) {
    const char *name = NULL;
    const char *domain = text_or(api, api->node_domain(node, &name), &name);
    return strcmp(domain, "ai.onnx") == 0 ? "" : domain;
}

bool graph_node_is(const ort_api *api, const ort_node *node, const char *name) {
    return node && strcmp(graph_operator(api, node), name) == 0 && !*graph_domain(api, node);
}

const char *graph_node_name(const ort_api *api, const ort_node *node) {
    const char *name = NULL;
    return text_or(api, api->node_name(node, &name), &name);
}

const char *graph_provider(const ort_api *api, const ort_node *node) {
    const char *name = NULL;
    return text_or(api, api->node_ep(node, &name), &name);
}

typedef ort_status *(*count_of)(const ort_node *, size_t *);
typedef ort_status *(*list_of)(const ort_node *, const ort_value_info **, size_t);

/* A node with more ends than are read has count 0, as no operator here has so many. */
static graph_ends ends_of(const ort_api *api, const ort_node *node, count_of count, list_of list) {
    graph_ends ends = {.count = 0};
    size_t found = 0;
    if (!graph_ok(api, count(node, &found)) || found > GRAPH_ENDS)
        return ends;
    if (found > 0 && !graph_ok(api, list(node, ends.list, found)))
        return (graph_ends){.count = 0};
    ends.count = found;
    for (size_t i = 0; i < found; i++)
        if (ends.list[i] && !*graph_value_name(api, ends.list[i]))
            ends.list[i] = NULL;
    return ends;
}

graph_ends graph_inputs(const ort_api *api, const ort_node *node) {
    return ends_of(api, node, api->input_count, api->inputs);
}

graph_ends graph_outputs(const ort_api *api, const ort_node *node) {
    return ends_of(api, node, api->output_count, api->outputs);
}

static const ort_attribute *attribute_of(const ort_api *api, const ort_node *node,
                                         const char *name) {
    const ort_attribute *found = NULL;
    return graph_ok(api, api->attribute(node, name, &found)) ? found : NULL;
}

bool graph_only_whole(const ort_api *api, const ort_node *node, const char *name, int64_t *value) {
    const ort_attribute *found = attribute_of(api, node, name);
    size_t written = 0;
    return found &&
           graph_ok(api, api->read_attribute(found, ORT_ATTRIBUTE_INTS, value, sizeof *value,
                                             &written)) &&
           written == sizeof *value;
}

int64_t graph_whole(const ort_api *api, const ort_node *node, const char *name, int64_t otherwise) {
    const ort_attribute *found = attribute_of(api, node, name);
    int64_t value = otherwise;
    size_t written = 0;
    if (found && !graph_ok(api, api->read_attribute(found, ORT_ATTRIBUTE_INT, &value, sizeof value,
                                                    &written)))
        return otherwise;
    return value;
}

double graph_real(const ort_api *api, const ort_node *node, const char *name, double otherwise) {
    const ort_attribute *found = attribute_of(api, node, name);
    float value = 0;
    size_t written = 0;
    if (!found || !graph_ok(api, api->read_attribute(found, ORT_ATTRIBUTE_FLOAT, &value,
                                                     sizeof value, &written)))
        return otherwise;
    return (double)value;
}

const char *graph_value_name(const ort_api *api, const ort_value_info *value) {
    const char *name = NULL;
    return text_or(api, api->value_name(value, &name), &name);
}

bool graph_is_same(const ort_api *api, const ort_value_info *a, const ort_value_info *b) {
    return strcmp(graph_value_name(api, a), graph_value_name(api, b)) == 0;
}

int graph_place(const ort_api *api, graph_ends ends, const ort_value_info *value) {
    for (size_t i = 0; value && i < ends.count; i++)
        if (ends.list[i] && graph_is_same(api, ends.list[i], value))
            return (int)i;
    return -1;
}

graph_value graph_value_of(const ort_api *api, const ort_value_info *value) {
    graph_value found = {.type = 0, .rank = -1};
    const ort_type_info *type = NULL;
    const ort_tensor_info *tensor = NULL;
    if (!graph_ok(api, api->value_type(value, &type)) || !type ||
        !graph_ok(api, api->as_tensor_info(type, &tensor)) || !tensor ||
        !graph_ok(api, api->element_type(tensor, &found.type)))
        return (graph_value){.type = 0, .rank = -1};
    size_t rank = 0;
    if (!api->has_shape(tensor) || !graph_ok(api, api->rank(tensor, &rank)))
        return found;
    if (rank > PLANISH_MAX_NDIM) {
        found.rank = (int)rank;
        return found;
    }
    if (graph_ok(api, api->sizes(tensor, found.sizes, rank)) &&
        graph_ok(api, api->size_names(tensor, found.names, rank)))
        found.rank = (int)rank;
    return found;
}

size_t graph_readers(const ort_api *api, const ort_value_info *value) {
    size_t readers = 0;
    bool is_output = true;
    if (!graph_ok(api, api->consumer_count(value, &readers)) ||
        !graph_ok(api, api->is_graph_output(value, &is_output)))
        return SIZE_MAX;
    return readers + is_output;
}

bool graph_is_constant(const ort_api *api, const ort_value_info *value) {
    bool is_constant = false;
    return graph_ok(api, api->is_constant(value, &is_constant)) && is_constant;
}

const void *graph_constant(const ort_api *api, const ort_value_info *value) {
    const ort_value *tensor = NULL;
    void *data = NULL;
    if (!graph_is_constant(api, value) || !graph_ok(api, api->initializer(value, &tensor)) ||
        !tensor || !graph_ok(api, api->tensor_data((ort_value *)tensor, &data)))
        return NULL;
    return data;
}
