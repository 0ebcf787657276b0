/* What the runtime's graph says of a node, with its errors taken as "not known": whoever asks
 * leaves such a node to the runtime. */
#ifndef PLANISH_ORT_GRAPH_H
#define PLANISH_ORT_GRAPH_H

#include "ort_api.h"
#include "planish.h"

/* More than any operator here has; of a node with more, the rest is not read. */
enum { GRAPH_ENDS = 8 };

/* Whether that went well; an error is released. */
bool graph_ok(const ort_api *api, ort_status *status);

const char *graph_operator(const ort_api *api, const ort_node *node); /* "" where not known */
const char *graph_domain(const ort_api *api, const ort_node *node);   /* "" is ONNX's own */
bool graph_node_is(const ort_api *api, const ort_node *node, const char *name);
/* The provider that it was given to; "" where it still may be given. */
const char *graph_provider(const ort_api *api, const ort_node *node);
const char *graph_node_name(const ort_api *api, const ort_node *node);

typedef struct graph_ends {
    const ort_value_info *list[GRAPH_ENDS]; /* NULL where one is left out */
    size_t count;
} graph_ends;
graph_ends graph_inputs(const ort_api *api, const ort_node *node);
graph_ends graph_outputs(const ort_api *api, const ort_node *node);

/* The value of an attribute, or what it is without one. */
int64_t graph_whole(const ort_api *api, const ort_node *node, const char *name, int64_t otherwise);
double graph_real(const ort_api *api, const ort_node *node, const char *name, double otherwise);
/* Whether it is a list of one number, which is then written. */
bool graph_only_whole(const ort_api *api, const ort_node *node, const char *name, int64_t *value);

const char *graph_value_name(const ort_api *api, const ort_value_info *value);
/* Whether two stand for one value: a fused node has pointers of its own. */
bool graph_is_same(const ort_api *api, const ort_value_info *a, const ort_value_info *b);
/* The value's place among these; -1: it is none of them. */
int graph_place(const ort_api *api, graph_ends ends, const ort_value_info *value);

typedef struct graph_value {
    int32_t type;                        /* of its elements; 0 where it is no tensor */
    int rank;                            /* -1: not known */
    int64_t sizes[PLANISH_MAX_NDIM];     /* -1: not known */
    const char *names[PLANISH_MAX_NDIM]; /* of sizes that are not known; "" where they have none */
} graph_value;
graph_value graph_value_of(const ort_api *api, const ort_value_info *value);

bool graph_is_constant(const ort_api *api, const ort_value_info *value);
/* What it holds, where it is a constant of the model; else NULL. */
const void *graph_constant(const ort_api *api, const ort_value_info *value);
/* How many nodes read it, where it is seen; with an output of the graph one more. */
size_t graph_readers(const ort_api *api, const ort_value_info *value);

#endif
