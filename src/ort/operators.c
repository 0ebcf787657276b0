/* Operators as recipes: a row for each, and what of their attributes planish takes. */
#include <string.h>

#include "recipe.h"

enum { MOST_IN = 5, MOST_OUT = 4 };

typedef struct operator_row {
    const char *name, *domain;
    int32_t since; /* the first version of the operator that this row is of */
    family family;
    planish_kind kind;
    double eps; /* where the node has none */
    slot in[MOST_IN], out[MOST_OUT];
} operator_row;

#define ONNX ""
#define MICROSOFT "com.microsoft"
/* clang-format off */
static const operator_row rows[] = {
    {"LayerNormalization", ONNX, 1, FAMILY_ROWS, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS}, {OUT_Y, OUT_MEAN, OUT_RSTD}},
    {"SimplifiedLayerNormalization", ONNX, 1, FAMILY_ROWS, PLANISH_RMS, 1e-5,
     {IN_X, IN_WEIGHT}, {OUT_Y, OUT_RSTD}},
    {"RMSNormalization", ONNX, 23, FAMILY_ROWS, PLANISH_RMS, 1e-5,
     {IN_X, IN_WEIGHT}, {OUT_Y}},
    {"SkipLayerNormalization", MICROSOFT, 1, FAMILY_ROWS, PLANISH_LAYER, 1e-12,
     {IN_X, IN_RESIDUAL, IN_WEIGHT, IN_BIAS, IN_EARLY_BIAS}, {OUT_Y, OUT_MEAN, OUT_RSTD, OUT_SUM}},
    {"SkipSimplifiedLayerNormalization", MICROSOFT, 1, FAMILY_ROWS, PLANISH_RMS, 1e-12,
     {IN_X, IN_RESIDUAL, IN_WEIGHT, IN_EARLY_BIAS}, {OUT_Y, OUT_MEAN, OUT_RSTD, OUT_SUM}},
    {"GroupNormalization", ONNX, 18, FAMILY_GROUPS, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS}, {OUT_Y}},
    {"GroupNorm", MICROSOFT, 1, FAMILY_GROUPS, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS}, {OUT_Y}},
    {"SkipGroupNorm", MICROSOFT, 1, FAMILY_GROUPS, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS, IN_RESIDUAL, IN_EARLY_BIAS}, {OUT_Y, OUT_SUM}},
    {"InstanceNormalization", ONNX, 6, FAMILY_INSTANCE, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS}, {OUT_Y}},
    {"BatchNormalization", ONNX, 9, FAMILY_BATCH, PLANISH_LAYER, 1e-5,
     {IN_X, IN_WEIGHT, IN_BIAS, IN_MEAN, IN_VAR}, {OUT_Y, OUT_RUNNING_MEAN, OUT_RUNNING_VAR}},
};
/* clang-format on */

static const operator_row *row_of(const ort_api *api, const ort_node *node) {
    const char *name = graph_operator(api, node), *domain = graph_domain(api, node);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(name, rows[i].name) == 0 && strcmp(domain, rows[i].domain) == 0)
            return &rows[i];
    return NULL;
}

static int32_t since_of(const ort_api *api, const ort_node *node) {
    int32_t since = 0;
    return graph_ok(api, api->node_since(node, &since)) ? since : 0;
}

/* Values by their slots; false where the node has more than the row knows. */
static bool place(recipe *made, const graph_ends *ends, const slot *slots, size_t most) {
    for (size_t i = 0; i < ends->count; i++) {
        const slot to = i < most ? slots[i] : SLOT_NONE;
        if (to != SLOT_NONE)
            made->values[to] = ends->list[i];
        else if (ends->list[i])
            return false;
    }
    return true;
}

static bool is_real(int32_t type) {
    return type == ORT_F32 || type == ORT_F16 || type == ORT_BF16 || type == ORT_F64;
}

static const char *values_refused(const recipe *made, const ort_api *api) {
    if (!made->values[IN_X] || !made->values[OUT_Y])
        return "x or y is missing";
    /* Beyond these sizes may still make an error of a run. */
    const int most = PLANISH_MAX_NDIM - (made->facts.family == FAMILY_GROUPS);
    for (int s = IN_X; s < SLOT_COUNT; s++) {
        if (!made->values[s])
            continue;
        const graph_value value = graph_value_of(api, made->values[s]);
        if (!is_real(value.type))
            return "a tensor is not of f16, bf16, f32 or f64";
        if (value.rank > most)
            return "a tensor has too many axes";
    }
    const int rank = graph_value_of(api, made->values[IN_X]).rank;
    const int least = made->facts.family == FAMILY_ROWS    ? 1
                      : made->facts.family == FAMILY_BATCH ? 2
                                                           : 3;
    if (rank >= 0 && rank < least)
        return "x has too few axes";
    return NULL;
}

static const char *read_rows(norm_facts *facts, const ort_api *api, const ort_node *node) {
    facts->axis = graph_whole(api, node, "axis", -1);
    if (graph_whole(api, node, "stash_type", 1) != 1)
        return "stash_type is not 1";
    return NULL;
}

static const char *read_groups(norm_facts *facts, const ort_api *api, const ort_node *node,
                               const operator_row *row) {
    const bool is_onnx = !*row->domain;
    facts->groups = graph_whole(api, node, is_onnx ? "num_groups" : "groups", 0);
    if (facts->groups < 1)
        return "there is no number of groups";
    if (graph_whole(api, node, "stash_type", 1) != 1)
        return "stash_type is not 1";
    facts->weight_of_group = is_onnx && since_of(api, node) < 21;
    facts->channels_last = !is_onnx && graph_whole(api, node, "channels_last", 1) != 0;
    const int64_t activation = is_onnx ? 0 : graph_whole(api, node, "activation", 0);
    if (activation != 0 && activation != 1)
        return "activation is neither 0 nor 1";
    facts->activation = activation ? PLANISH_SILU : PLANISH_IDENTITY;
    return NULL;
}

static const char *read_batch(recipe *made, const ort_api *api, const ort_node *node) {
    made->facts.momentum = graph_real(api, node, "momentum", 0.9);
    made->facts.training = graph_whole(api, node, "training_mode", 0) != 0;
    const bool has_both = made->values[OUT_RUNNING_MEAN] && made->values[OUT_RUNNING_VAR];
    const bool has_one = made->values[OUT_RUNNING_MEAN] || made->values[OUT_RUNNING_VAR];
    if (!made->values[IN_MEAN] || !made->values[IN_VAR])
        return "mean or var is missing";
    if (made->facts.training ? !has_both : has_one)
        return "its outputs are not those of training_mode";
    for (int s = IN_MEAN; made->facts.training && s <= IN_VAR; s++) {
        const int32_t type = graph_value_of(api, made->values[s]).type;
        if (type != ORT_F32 && type != ORT_F64)
            return "running statistics of training are not of f32 or f64";
    }
    return NULL;
}

bool recipe_of_node(recipe *made, const ort_api *api, const ort_node *node, const char **reason) {
    const operator_row *row = row_of(api, node);
    if (!row)
        return false;
    *made = (recipe){
        .facts = {.family = row->family, .kind = row->kind}, .nodes = {node}, .node_count = 1};
    made->facts.eps = graph_real(api, node, "epsilon", row->eps);
    const graph_ends in = graph_inputs(api, node), out = graph_outputs(api, node);
    if (since_of(api, node) < row->since) {
        *reason = "it is of an older version";
        return true;
    }
    if (!place(made, &in, row->in, MOST_IN) || !place(made, &out, row->out, MOST_OUT)) {
        *reason = "it has inputs or outputs that planish does not know";
        return true;
    }
    *reason = values_refused(made, api);
    if (!*reason && row->kind == PLANISH_RMS && made->values[OUT_MEAN])
        *reason = "an RMS norm has no mean";
    if (!*reason && row->family == FAMILY_ROWS)
        *reason = read_rows(&made->facts, api, node);
    if (!*reason && row->family == FAMILY_GROUPS)
        *reason = read_groups(&made->facts, api, node, row);
    if (!*reason && row->family == FAMILY_BATCH)
        *reason = read_batch(made, api, node);
    return true;
}
