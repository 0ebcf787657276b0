/* The runtime asks which nodes of a graph planish takes, and then for what runs each of them. */
#include "provider.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"

typedef struct provider {
    ort_ep ep; /* first: the runtime's pointer is one to this */
    const ort_api *api;
    const ort_logger *logger;
} provider;

/* ---- Which nodes are taken ------------------------------------------------------------------ */

static void say_left(const provider *self, const ort_node *node, const char *reason) {
    char line[256];
    snprintf(line, sizeof line, "planish leaves %s \"%s\" to the runtime: %s",
             graph_operator(self->api, node), graph_node_name(self->api, node), reason);
    graph_ok(self->api,
             self->api->log(self->logger, ORT_LOG_INFO, line, "planish", 0, "get_capability"));
}

/* The recipe of a norm with what runs in its pass; false where the node is none, or is left. */
static bool recipe_at(recipe *made, const provider *self, const ort_node *node, node_set *nodes) {
    const char *reason = NULL;
    if (!recipe_of_node(made, self->api, node, &reason) &&
        !recipe_of_written_rows(made, nodes, node))
        return false;
    if (reason) {
        say_left(self, node, reason);
        return false;
    }
    recipe_group_around(made, nodes);
    recipe_add_before(made, nodes);
    recipe_activation_behind(made, nodes);
    for (int i = 0; i < made->node_count; i++)
        nodes_take(nodes, made->nodes[i]);
    return true;
}

static ort_status *get_capability(ort_ep *ep, const ort_graph *graph, ort_support *support) {
    const provider *self = (const provider *)ep;
    const ort_ep_api *ep_api = self->api->ep_api();
    node_set nodes = nodes_of(self->api, graph, PLANISH_ORT_NAME);
    ort_status *status = NULL;
    for (size_t i = 0; i < nodes.count && !status; i++) {
        recipe made;
        if (!nodes.is_taken[i] && recipe_at(&made, self, nodes.list[i], &nodes))
            status = ep_api->fuse_nodes(support, made.nodes, (size_t)made.node_count, NULL);
    }
    nodes_free(&nodes);
    return status;
}

/* ---- What runs them ------------------------------------------------------------------------- */

static ort_status *create_state(ort_compute *compute, ort_compute_context *context, void **state) {
    (void)context;
    *state = compute;
    return NULL;
}

static ort_status *compute(ort_compute *compute, void *state, ort_kernel_context *context) {
    (void)state;
    return norm_kernel_run((const norm_kernel *)compute, context);
}

static void release_state(ort_compute *compute, void *state) {
    (void)compute;
    (void)state;
}

static norm_kernel *kernel_of(const provider *self, const recipe *made, const ort_node *fused) {
    norm_kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return NULL;
    const graph_ends in = graph_inputs(self->api, fused), out = graph_outputs(self->api, fused);
    kernel->compute = (ort_compute){ORT_API_VERSION, create_state, compute, release_state};
    kernel->api = self->api;
    kernel->facts = made->facts;
    for (int s = 0; s < SLOT_COUNT; s++)
        kernel->at[s] = graph_place(self->api, s < OUT_Y ? in : out, made->values[s]);
    return kernel;
}

/* The graph of the nodes that were taken together is read as the whole was. */
static norm_kernel *compile_one(const provider *self, const ort_graph *graph,
                                const ort_node *fused) {
    node_set nodes = nodes_of(self->api, graph, PLANISH_ORT_NAME);
    norm_kernel *kernel = NULL;
    for (size_t i = 0; i < nodes.count && !kernel; i++) {
        recipe made;
        if (recipe_at(&made, self, nodes.list[i], &nodes))
            kernel = kernel_of(self, &made, fused);
    }
    nodes_free(&nodes);
    return kernel;
}

static void release_computes(ort_ep *ep, ort_compute **computes, size_t count) {
    (void)ep;
    for (size_t i = 0; i < count; i++)
        free(computes[i]);
}

static ort_status *compile(ort_ep *ep, const ort_graph **graphs, const ort_node **fused,
                           size_t count, ort_compute **computes, ort_node **contexts) {
    const provider *self = (const provider *)ep;
    (void)contexts;
    for (size_t i = 0; i < count; i++) {
        norm_kernel *kernel = compile_one(self, graphs[i], fused[i]);
        if (!kernel) {
            release_computes(ep, computes, i);
            return self->api->create_status(ORT_FAIL,
                                            "planish: a fused node is not what was taken");
        }
        computes[i] = &kernel->compute;
    }
    return NULL;
}

static const char *name_of(const ort_ep *ep) {
    (void)ep;
    return PLANISH_ORT_NAME;
}

ort_ep *provider_create(const ort_api *api, const ort_logger *logger) {
    provider *self = calloc(1, sizeof *self);
    if (!self)
        return NULL;
    *self = (provider){
        .ep = {.version = ORT_API_VERSION,
               .name = name_of,
               .get_capability = get_capability,
               .compile = compile,
               .release_computes = release_computes},
        .api = api,
        .logger = logger,
    };
    return &self->ep;
}

void provider_release(ort_ep *ep) {
    free(ep);
}
