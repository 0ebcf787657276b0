#include "nodes.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *left, const void *right) {
    const node_maker *a = left, *b = right;
    return strcmp(a->value, b->value);
}

/* The runtime warns of a value whose maker it is asked for and which is not of the graph; so it is
 * not asked. */
static bool find_makers(node_set *nodes) {
    nodes->makers = malloc(nodes->count * GRAPH_ENDS * sizeof *nodes->makers);
    if (!nodes->makers)
        return false;
    for (size_t i = 0; i < nodes->count; i++) {
        const graph_ends out = graph_outputs(nodes->api, nodes->list[i]);
        for (size_t j = 0; j < out.count; j++)
            if (out.list[j])
                nodes->makers[nodes->maker_count++] =
                    (node_maker){graph_value_name(nodes->api, out.list[j]), i};
    }
    qsort(nodes->makers, nodes->maker_count, sizeof *nodes->makers, by_value);
    return true;
}

node_set nodes_of(const ort_api *api, const ort_graph *graph, const char *own) {
    node_set nodes = {.api = api};
    size_t count = 0;
    if (!graph_ok(api, api->node_count(graph, &count)) || count == 0)
        return nodes;
    nodes.list = malloc(count * sizeof *nodes.list);
    nodes.is_taken = calloc(count, sizeof *nodes.is_taken);
    if (nodes.list && nodes.is_taken && graph_ok(api, api->nodes(graph, nodes.list, count)))
        nodes.count = count;
    if (nodes.count > 0 && !find_makers(&nodes))
        nodes.count = 0;
    for (size_t i = 0; i < nodes.count; i++) {
        const char *provider = graph_provider(api, nodes.list[i]);
        nodes.is_taken[i] = *provider && strcmp(provider, own) != 0;
    }
    return nodes;
}

void nodes_free(node_set *nodes) {
    free(nodes->list);
    free(nodes->is_taken);
    free(nodes->makers);
}

static size_t place_of(const node_set *nodes, const ort_node *node) {
    size_t i = 0;
    while (i < nodes->count && nodes->list[i] != node)
        i++;
    return i;
}

bool nodes_is_free(const node_set *nodes, const ort_node *node) {
    const size_t at = place_of(nodes, node);
    return at < nodes->count && !nodes->is_taken[at];
}

void nodes_take(node_set *nodes, const ort_node *node) {
    const size_t at = place_of(nodes, node);
    if (at < nodes->count)
        nodes->is_taken[at] = true;
}

const ort_node *nodes_maker(const node_set *nodes, const ort_value_info *value) {
    if (!value || nodes->maker_count == 0)
        return NULL;
    const node_maker wanted = {graph_value_name(nodes->api, value), 0};
    const node_maker *found =
        bsearch(&wanted, nodes->makers, nodes->maker_count, sizeof *nodes->makers, by_value);
    return found ? nodes->list[found->node] : NULL;
}

node_readers nodes_readers(const node_set *nodes, const ort_value_info *value) {
    const ort_api *api = nodes->api;
    node_readers found = {.count = 0};
    int64_t places[2];
    size_t count = 0;
    if (!graph_ok(api, api->consumer_count(value, &count)) || count == 0 || count > 2 ||
        graph_readers(api, value) != count ||
        !graph_ok(api, api->consumers(value, found.list, places, count)))
        return (node_readers){.count = 0};
    found.count = (int)count;
    return found;
}

const ort_node *nodes_sole_reader(const node_set *nodes, const ort_value_info *value,
                                  const char *name) {
    const node_readers found = nodes_readers(nodes, value);
    const bool is_it = found.count == 1 && nodes_is_free(nodes, found.list[0]) &&
                       graph_node_is(nodes->api, found.list[0], name);
    return is_it ? found.list[0] : NULL;
}
