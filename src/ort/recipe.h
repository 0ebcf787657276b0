/*
 * What nodes of the runtime's graph are to planish: one norm, with what is added before it and the
 * activation behind it, and the values that are its tensors.
 */
#ifndef PLANISH_ORT_RECIPE_H
#define PLANISH_ORT_RECIPE_H

#include "nodes.h"

/* Which axes a norm is over, once the sizes are known. */
typedef enum family {
    FAMILY_ROWS,     /* those from an axis on */
    FAMILY_GROUPS,   /* groups of channels and all axes behind them */
    FAMILY_INSTANCE, /* all axes behind the channels */
    FAMILY_BATCH     /* all axes but the channels */
} family;

/* The values of a norm: what is read, from OUT_Y on what is written. */
typedef enum slot {
    SLOT_NONE,
    IN_X,
    IN_RESIDUAL,
    IN_EARLY_BIAS, /* added as well, a number for each channel */
    IN_WEIGHT,
    IN_BIAS,
    IN_MEAN, /* of a batch norm, running */
    IN_VAR,
    OUT_Y,
    OUT_SUM,
    OUT_MEAN,
    OUT_RSTD,
    OUT_RUNNING_MEAN,
    OUT_RUNNING_VAR,
    SLOT_COUNT
} slot;

typedef struct norm_facts {
    family family;
    planish_kind kind;
    planish_activation activation;
    double eps, momentum;
    int64_t axis, groups;
    bool channels_last;
    bool weight_of_group; /* one for a group, not for a channel */
    bool training;
} norm_facts;

/* The most: a LayerNorm that is written out in ten, an Add before it, two of SiLU behind it. */
enum { RECIPE_NODES = 13 };
typedef struct recipe {
    norm_facts facts;
    const ort_value_info *values[SLOT_COUNT];
    const ort_node *nodes[RECIPE_NODES];
    int node_count;
} recipe;

static inline void recipe_take(recipe *made, const ort_node *node) {
    made->nodes[made->node_count++] = node;
}

/* Whether the node is a norm by its name, and then whether planish takes it: *reason is NULL, or
 * says in a few words why it is left to the runtime. */
bool recipe_of_node(recipe *made, const ort_api *api, const ort_node *node, const char **reason);

/*
 * Norms that a model has written out in other operators, as torch.onnx.export does for older
 * versions of ONNX. Over the last axis, known by its ReduceMean of squares, an RMS norm, and behind
 * the first two nodes, where d stands for x, a LayerNorm:
 *     d = Sub(x, ReduceMean(x))
 *     Pow(d, 2), ReduceMean, Add(eps), Sqrt, Reciprocal and Mul(d) or Div, Mul(weight), Add(bias)
 * and around an InstanceNorm of (N, groups, -1) with weight 1 and bias 0, a GroupNorm:
 *     Reshape, InstanceNormalization, Reshape, Mul(weight), Add(bias)
 */
bool recipe_of_written_rows(recipe *made, const node_set *nodes, const ort_node *mean);
void recipe_group_around(recipe *made, const node_set *nodes);

/* Free nodes before and behind it join it, which run in the same pass: an Add that makes x, and an
 * activation that alone reads y. */
void recipe_add_before(recipe *made, const node_set *nodes);
void recipe_activation_behind(recipe *made, const node_set *nodes);

#endif
