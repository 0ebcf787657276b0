/* What stands around a norm and runs in its pass: an Add before it, an activation behind it. */
#include "recipe.h"

void recipe_add_before(recipe *made, const node_set *nodes) {
    const ort_api *api = nodes->api;
    const ort_value_info *x = made->values[IN_X];
    const ort_node *add = nodes_maker(nodes, x);
    const bool is_rows = made->facts.family == FAMILY_ROWS;
    if (!is_rows || made->values[IN_RESIDUAL] || !graph_node_is(api, add, "Add") ||
        !nodes_is_free(nodes, add))
        return;
    /* Weights that are made may depend on the sum, and a fused node may not read what is made of
     * its own result. */
    if (nodes_maker(nodes, made->values[IN_WEIGHT]) || nodes_maker(nodes, made->values[IN_BIAS]))
        return;
    const graph_ends in = graph_inputs(api, add);
    if (in.count != 2 || !in.list[0] || !in.list[1])
        return;
    made->values[IN_X] = in.list[0];
    made->values[IN_RESIDUAL] = in.list[1];
    made->values[OUT_SUM] = x;
    recipe_take(made, add);
}

/* y * sigmoid(y): two readers of y, of which one reads the other's result. */
static bool take_silu(recipe *made, const node_set *nodes, const node_readers *of_y) {
    const ort_api *api = nodes->api;
    for (int i = 0; i < 2; i++) {
        const ort_node *sigmoid = of_y->list[i], *mul = of_y->list[1 - i];
        if (!graph_node_is(api, sigmoid, "Sigmoid") || !graph_node_is(api, mul, "Mul") ||
            !nodes_is_free(nodes, sigmoid) || !nodes_is_free(nodes, mul))
            continue;
        const graph_ends gate = graph_outputs(api, sigmoid), out = graph_outputs(api, mul);
        if (gate.count != 1 || out.count != 1 || !gate.list[0] || !out.list[0] ||
            graph_readers(api, gate.list[0]) != 1 ||
            graph_place(api, graph_inputs(api, mul), gate.list[0]) < 0)
            continue;
        made->facts.activation = PLANISH_SILU;
        made->values[OUT_Y] = out.list[0];
        recipe_take(made, sigmoid);
        recipe_take(made, mul);
        return true;
    }
    return false;
}

void recipe_activation_behind(recipe *made, const node_set *nodes) {
    const ort_api *api = nodes->api;
    if (made->facts.activation != PLANISH_IDENTITY)
        return;
    const node_readers of_y = nodes_readers(nodes, made->values[OUT_Y]);
    if (of_y.count == 2) {
        take_silu(made, nodes, &of_y);
        return;
    }
    const ort_node *relu = nodes_sole_reader(nodes, made->values[OUT_Y], "Relu");
    const graph_ends out = relu ? graph_outputs(api, relu) : (graph_ends){.count = 0};
    if (out.count != 1 || !out.list[0])
        return;
    made->facts.activation = PLANISH_RELU;
    made->values[OUT_Y] = out.list[0];
    recipe_take(made, relu);
}
