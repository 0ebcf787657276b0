/* Norms that a model has written out in other operators (recipe.h). */
#include <math.h>
#include <string.h>

#include "recipe.h"

static bool is_same(const ort_api *api, const ort_value_info *a, const ort_value_info *b) {
    return strcmp(graph_value_name(api, a), graph_value_name(api, b)) == 0;
}

static int64_t elements_of(const graph_value *value) {
    int64_t elements = value->rank < 0 ? -1 : 1;
    for (int i = 0; i < value->rank; i++)
        elements *= value->sizes[i] < 0 ? 0 : value->sizes[i];
    return elements;
}

/* A constant of one number; NaN where it is none. */
static double number_of(const ort_api *api, const ort_value_info *value) {
    const graph_value known = graph_value_of(api, value);
    const void *data = elements_of(&known) == 1 ? graph_constant(api, value) : NULL;
    if (data && known.type == ORT_F32)
        return (double)*(const float *)data;
    if (data && known.type == ORT_F64)
        return *(const double *)data;
    return data && known.type == ORT_I64 ? (double)*(const int64_t *)data : (double)NAN;
}

/* Whether every element of a constant of f32 is this number. */
static bool is_all(const ort_api *api, const ort_value_info *value, float number) {
    const graph_value known = graph_value_of(api, value);
    const float *data = known.type == ORT_F32 ? graph_constant(api, value) : NULL;
    const int64_t elements = elements_of(&known);
    for (int64_t i = 0; data && i < elements; i++)
        if (data[i] != number)
            return false;
    return data && elements > 0;
}

/* What a node of two inputs has beside one of them; NULL where it has another number. */
static const ort_value_info *other_input(const ort_api *api, const ort_node *node,
                                         const ort_value_info *one) {
    const graph_ends in = graph_inputs(api, node);
    if (in.count != 2 || !in.list[0] || !in.list[1])
        return NULL;
    return in.list[is_same(api, in.list[0], one) ? 1 : 0];
}

static const ort_value_info *output_of(const ort_api *api, const ort_node *node) {
    const graph_ends out = graph_outputs(api, node);
    return out.count == 1 ? out.list[0] : NULL;
}

/* Takes the sole reader of *value, which becomes that one's result; false where there is none. */
static bool step(recipe *made, const node_set *nodes, const ort_value_info **value,
                 const char *name) {
    const ort_node *next = *value ? nodes_sole_reader(nodes, *value, name) : NULL;
    if (!next)
        return false;
    made->nodes[made->node_count++] = next;
    *value = output_of(nodes->api, next);
    return *value != NULL;
}

static const ort_node *last_of(const recipe *made) {
    return made->nodes[made->node_count - 1];
}

/* Whether a ReduceMean is over the last axis alone, which it keeps. */
static bool is_of_last_axis(const ort_api *api, const ort_node *mean, const graph_ends *in,
                            int rank) {
    const double axis = in->count == 2 && in->list[1] ? number_of(api, in->list[1]) : (double)NAN;
    return graph_whole(api, mean, "keepdims", 1) == 1 &&
           (axis == -1 || (rank > 0 && axis == (double)(rank - 1)));
}

/* x of x^2. */
static const ort_value_info *squared(const node_set *nodes, const ort_node *pow) {
    if (!graph_node_is(nodes->api, pow, "Pow") || !nodes_is_free(nodes, pow))
        return NULL;
    const graph_ends in = graph_inputs(nodes->api, pow);
    const bool is_square =
        in.count == 2 && in.list[0] && in.list[1] && number_of(nodes->api, in.list[1]) == 2;
    return is_square ? in.list[0] : NULL;
}

bool recipe_of_written_rms(recipe *made, const node_set *nodes, const ort_node *mean) {
    const ort_api *api = nodes->api;
    if (!graph_node_is(api, mean, "ReduceMean"))
        return false;
    const graph_ends in = graph_inputs(api, mean);
    const ort_value_info *value = in.count > 0 ? in.list[0] : NULL;
    const ort_node *pow = nodes_maker(nodes, value);
    const ort_value_info *x = squared(nodes, pow);
    if (!x || nodes_readers(nodes, value).count != 1)
        return false;
    const graph_value known = graph_value_of(api, x);
    if ((known.type != ORT_F32 && known.type != ORT_F64) ||
        !is_of_last_axis(api, mean, &in, known.rank))
        return false;
    *made = (recipe){.facts = {.family = FAMILY_ROWS, .kind = PLANISH_RMS, .axis = -1},
                     .values = {[IN_X] = x},
                     .nodes = {pow, mean},
                     .node_count = 2};
    value = output_of(api, mean);
    const ort_value_info *before = value;
    if (!step(made, nodes, &value, "Add"))
        return false;
    const ort_value_info *eps = other_input(api, last_of(made), before);
    made->facts.eps = eps ? number_of(api, eps) : (double)NAN;
    if (isnan(made->facts.eps) || !step(made, nodes, &value, "Sqrt") ||
        !step(made, nodes, &value, "Reciprocal"))
        return false;
    before = value;
    if (!step(made, nodes, &value, "Mul"))
        return false;
    const ort_value_info *again = other_input(api, last_of(made), before);
    if (!again || !is_same(api, again, x))
        return false;
    before = value;
    if (!step(made, nodes, &value, "Mul"))
        return false;
    /* A weight that is made may depend on what is inside. */
    made->values[IN_WEIGHT] = other_input(api, last_of(made), before);
    made->values[OUT_Y] = value;
    return made->values[IN_WEIGHT] && graph_constant(api, made->values[IN_WEIGHT]) &&
           graph_value_of(api, made->values[IN_WEIGHT]).rank == 1;
}

/* Whether two values have the same sizes, be they known or named alike. */
static bool same_sizes(const graph_value *a, const graph_value *b) {
    for (int i = 0; i < a->rank; i++) {
        const bool is_named = a->sizes[i] < 0 && b->sizes[i] < 0 && a->names[i] && *a->names[i] &&
                              b->names[i] && strcmp(a->names[i], b->names[i]) == 0;
        if (!is_named && (a->sizes[i] < 0 || a->sizes[i] != b->sizes[i]))
            return false;
    }
    return a->rank >= 0 && a->rank == b->rank;
}

/* Whether a constant has one number for each of so many channels: (C, 1, ...) beside (N, C, ...).
 */
static bool is_of_channels(const ort_api *api, const ort_value_info *value, int rank,
                           int64_t channels) {
    if (!value || !graph_constant(api, value))
        return false;
    const graph_value known = graph_value_of(api, value);
    const int at = 1 - (rank - known.rank);
    return at >= 0 && elements_of(&known) == channels && known.sizes[at] == channels;
}

void recipe_group_around(recipe *made, const node_set *nodes) {
    const ort_api *api = nodes->api;
    const ort_node *reshape = nodes_maker(nodes, made->values[IN_X]);
    if (made->facts.family != FAMILY_INSTANCE || !made->values[IN_BIAS] ||
        !graph_node_is(api, reshape, "Reshape") || !nodes_is_free(nodes, reshape) ||
        nodes_readers(nodes, made->values[IN_X]).count != 1 ||
        !is_all(api, made->values[IN_WEIGHT], 1) || !is_all(api, made->values[IN_BIAS], 0))
        return;
    const graph_ends in = graph_inputs(api, reshape);
    const graph_value x = graph_value_of(api, in.list[0]);
    const graph_value inner = graph_value_of(api, made->values[IN_X]);
    const int64_t groups = inner.rank == 3 ? inner.sizes[1] : -1;
    const int64_t channels = x.rank >= 3 ? x.sizes[1] : -1;
    const graph_value batch_x = {.rank = 1, .sizes = {x.sizes[0]}, .names = {x.names[0]}};
    const graph_value batch_inner = {
        .rank = 1, .sizes = {inner.sizes[0]}, .names = {inner.names[0]}};
    if (groups < 1 || channels < 1 || channels % groups != 0 || !same_sizes(&batch_x, &batch_inner))
        return;
    recipe wider = *made;
    const ort_value_info *value = made->values[OUT_Y], *before;
    if (!step(&wider, nodes, &value, "Reshape"))
        return;
    const graph_value outer = graph_value_of(api, value);
    before = value;
    if (!same_sizes(&x, &outer) || !step(&wider, nodes, &value, "Mul"))
        return;
    wider.values[IN_WEIGHT] = other_input(api, last_of(&wider), before);
    before = value;
    if (!is_of_channels(api, wider.values[IN_WEIGHT], x.rank, channels) ||
        !step(&wider, nodes, &value, "Add"))
        return;
    wider.values[IN_BIAS] = other_input(api, last_of(&wider), before);
    if (!is_of_channels(api, wider.values[IN_BIAS], x.rank, channels))
        return;
    wider.nodes[wider.node_count++] = reshape;
    wider.values[IN_X] = in.list[0];
    wider.values[OUT_Y] = value;
    wider.facts.family = FAMILY_GROUPS;
    wider.facts.groups = groups;
    *made = wider;
}
