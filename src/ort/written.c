/* Norms that a model has written out in other operators (recipe.h). */
#include <math.h>
#include <string.h>

#include "recipe.h"

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
    return in.list[graph_is_same(api, in.list[0], one) ? 1 : 0];
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
    recipe_take(made, next);
    *value = output_of(nodes->api, next);
    return *value != NULL;
}

static const ort_node *last_of(const recipe *made) {
    return made->nodes[made->node_count - 1];
}

/* Whether a ReduceMean of a value of this rank is over the last axis alone, which it keeps. The
 * axes are an input from version 18 on, before that an attribute. */
static bool is_of_last_axis(const ort_api *api, const ort_node *mean, int rank) {
    const graph_ends in = graph_inputs(api, mean);
    int64_t axis = 0;
    double number = (double)NAN;
    if (in.count == 2 && in.list[1])
        number = number_of(api, in.list[1]);
    else if (in.count == 1 && graph_only_whole(api, mean, "axes", &axis))
        number = (double)axis;
    return graph_whole(api, mean, "keepdims", 1) == 1 &&
           (number == -1 || (rank > 0 && number == (double)(rank - 1)));
}

/* The value of which a free node of two inputs, made of this operator, is the result; its inputs.
 */
static graph_ends inputs_of_maker(const node_set *nodes, const ort_value_info *value,
                                  const char *name, const ort_node **maker) {
    *maker = nodes_maker(nodes, value);
    if (!graph_node_is(nodes->api, *maker, name) || !nodes_is_free(nodes, *maker))
        return (graph_ends){.count = 0};
    return graph_inputs(nodes->api, *maker);
}

/* What is normalised: x, or x - mean(x), whose two nodes are then taken. */
static void begin_written(recipe *made, const node_set *nodes, const ort_value_info *centred) {
    const ort_api *api = nodes->api;
    const ort_node *subtract, *mean;
    made->values[IN_X] = centred;
    const graph_ends of_sub = inputs_of_maker(nodes, centred, "Sub", &subtract);
    if (of_sub.count != 2 || !of_sub.list[0] || !of_sub.list[1])
        return;
    const graph_ends of_mean = inputs_of_maker(nodes, of_sub.list[1], "ReduceMean", &mean);
    if (of_mean.count < 1 || !of_mean.list[0] ||
        !graph_is_same(api, of_mean.list[0], of_sub.list[0]) ||
        !is_of_last_axis(api, mean, graph_value_of(api, of_sub.list[0]).rank) ||
        nodes_readers(nodes, of_sub.list[1]).count != 1 || nodes_readers(nodes, centred).count != 2)
        return; /* an RMS norm of a difference */
    made->values[IN_X] = of_sub.list[0];
    made->facts.kind = PLANISH_LAYER;
    recipe_take(made, subtract);
    recipe_take(made, mean);
}

/* From the root on: the quotient of what is normalised and it. */
static bool divide(recipe *made, const node_set *nodes, const ort_value_info **value,
                   const ort_value_info *centred) {
    const ort_api *api = nodes->api;
    const ort_value_info *root = *value;
    if (step(made, nodes, value, "Div")) {
        const graph_ends in = graph_inputs(api, last_of(made));
        return in.count == 2 && in.list[0] && in.list[1] &&
               graph_is_same(api, in.list[0], centred) && graph_is_same(api, in.list[1], root);
    }
    if (!step(made, nodes, value, "Reciprocal"))
        return false;
    const ort_value_info *reciprocal = *value;
    if (!step(made, nodes, value, "Mul"))
        return false;
    const ort_value_info *other = other_input(api, last_of(made), reciprocal);
    return other && graph_is_same(api, other, centred);
}

/* A constant vector that the sole reader of *value joins with it; NULL where there is none. One
 * that is made may depend on what is inside. */
static const ort_value_info *vector_joined(recipe *made, const node_set *nodes,
                                           const ort_value_info **value, const char *name) {
    const ort_node *next = nodes_sole_reader(nodes, *value, name);
    const ort_value_info *vector = next ? other_input(nodes->api, next, *value) : NULL;
    const bool fits = vector && graph_is_constant(nodes->api, vector) &&
                      graph_value_of(nodes->api, vector).rank == 1;
    return fits && step(made, nodes, value, name) ? vector : NULL;
}

bool recipe_of_written_rows(recipe *made, const node_set *nodes, const ort_node *mean) {
    const ort_api *api = nodes->api;
    if (!graph_node_is(api, mean, "ReduceMean") || !nodes_is_free(nodes, mean))
        return false;
    const graph_ends in = graph_inputs(api, mean);
    const ort_value_info *value = in.count > 0 ? in.list[0] : NULL;
    const ort_node *pow;
    const graph_ends of_pow = inputs_of_maker(nodes, value, "Pow", &pow);
    if (of_pow.count != 2 || !of_pow.list[0] || !of_pow.list[1] ||
        number_of(api, of_pow.list[1]) != 2 || nodes_readers(nodes, value).count != 1)
        return false;
    const ort_value_info *centred = of_pow.list[0], *before;
    const graph_value known = graph_value_of(api, centred);
    if ((known.type != ORT_F32 && known.type != ORT_F64) || !is_of_last_axis(api, mean, known.rank))
        return false;
    *made = (recipe){.facts = {.family = FAMILY_ROWS, .kind = PLANISH_RMS, .axis = -1},
                     .nodes = {pow, mean},
                     .node_count = 2};
    value = output_of(api, mean);
    before = value;
    begin_written(made, nodes, centred);
    if (!step(made, nodes, &value, "Add"))
        return false;
    const ort_value_info *eps = other_input(api, last_of(made), before);
    made->facts.eps = eps ? number_of(api, eps) : (double)NAN;
    if (isnan(made->facts.eps) || !step(made, nodes, &value, "Sqrt") ||
        !divide(made, nodes, &value, centred))
        return false;
    made->values[IN_WEIGHT] = vector_joined(made, nodes, &value, "Mul");
    if (!made->values[IN_WEIGHT])
        return false;
    made->values[IN_BIAS] = vector_joined(made, nodes, &value, "Add");
    made->values[OUT_Y] = value;
    return true;
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
    if (!value || !graph_is_constant(api, value))
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
    recipe_take(&wider, reshape);
    wider.values[IN_X] = in.list[0];
    wider.values[OUT_Y] = value;
    wider.facts.family = FAMILY_GROUPS;
    wider.facts.groups = groups;
    *made = wider;
}
