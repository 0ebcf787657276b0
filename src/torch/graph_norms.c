/*
 * planish::graph_forward and graph_backward: norm_forward and norm_backward (norm_operators.c) in
 * the forms that stand in compiled graphs. Bits, kernels and counts are those operators'; what
 * differs is the call. Every argument is a tensor or a number and every result a tensor that is
 * there, so that the C++ of a graph calls them without Python, and a call boxes nothing. They have
 * no kernel at the Autograd keys: a graph is differentiated before they are put into it.
 *
 *     graph_forward.t<n>_r<m>(n tensors, int given, int axes, int options, int split, float eps,
 *                             float dropout_p) -> m tensors
 *     graph_backward.t<n>_r<m>(n tensors, int given, int axes, int options, int split,
 *                              float dropout_p) -> m tensors
 *
 * `given`: which of the operator's tensors these n are, one bit for each in its order. The m
 * results are those that the options ask for, in their order: of the forward y, the sum with its
 * dtype, with OPTION_SAVE the mean (but for RMS) and rstd; of the backward the gradients that are
 * wanted.
 */
#include "graph_norms.h"

#include <stdio.h>
#include <string.h>

#include "norm_operators.h"

enum { FORWARD_NUMBERS = 6, BACKWARD_NUMBERS = 5, BACKWARD_LEAST = 3 };

/* Takes the tensors that are `given`, of which there must be `count`. */
static void take_given(norm_call *c, stack_value *stack, const role inputs[], int input_count,
                       uint64_t given, int count) {
    role roles[BACKWARD_INPUTS];
    int found = 0;
    for (int i = 0; i < input_count; i++)
        if (given >> i & 1)
            roles[found++] = inputs[i];
    const bool fits = found == count && given >> input_count == 0;
    /* All are taken also where they do not fit: the callee owns them. */
    norm_call_take(c, stack, fits ? roles : inputs, count, count);
    if (!fits)
        torch_throw("planish: given has another number of bits than there are tensors");
}

static int present(const norm_call *c, const role outputs[], int output_count, role there[]) {
    int count = 0;
    for (int i = 0; i < output_count; i++)
        if (c->made[outputs[i]].impl)
            there[count++] = outputs[i];
    return count;
}

/* Puts the results that are there on the stack. */
static void give_present(norm_call *c, stack_value *stack, const role outputs[], int output_count,
                         uint64_t wanted) {
    role there[BACKWARD_OUTPUTS];
    const int count = present(c, outputs, output_count, there);
    if ((uint64_t)count != wanted)
        torch_throw("planish: options ask for another number of results than this form has");
    norm_call_give(c, stack, there, count);
}

void graph_forward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    const int count = (int)argument_count - FORWARD_NUMBERS;
    const stack_value *numbers = stack + count;
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(numbers[1], numbers[2]), .options = numbers[2], .rooms = rooms};
    c.op.eps = take_double(numbers[4]);
    c.op.dropout_p = take_double(numbers[5]);
    const int64_t split = (int64_t)numbers[3];
    take_given(&c, stack, forward_inputs, FORWARD_INPUTS, numbers[0], count);
    norm_forward_taken(&c, split);
    give_present(&c, stack, forward_outputs, FORWARD_OUTPUTS, return_count);
}

void graph_backward(stack_value *stack, uint64_t argument_count, uint64_t return_count) {
    const int count = (int)argument_count - BACKWARD_NUMBERS;
    const stack_value *numbers = stack + count;
    layout rooms[ROLE_COUNT];
    NORM_CALL c = {.op = op_of(numbers[1], numbers[2]), .options = numbers[2], .rooms = rooms};
    set_last(&c.op, take_double(numbers[4]));
    const int64_t split = (int64_t)numbers[3];
    take_given(&c, stack, backward_inputs, BACKWARD_INPUTS, numbers[0], count);
    norm_backward_taken(&c, split);
    give_present(&c, stack, backward_outputs, BACKWARD_OUTPUTS, return_count);
}

/* ---- Forms -------------------------------------------------------------------------------- */

/* Writes one more piece of text behind what is there. */
static int add(char *text, int length, const char *piece) {
    return length + snprintf(text + length, GRAPH_SCHEMA_ROOM - (size_t)length, "%s", piece);
}

static void write_schema(const graph_form *form, char schema[GRAPH_SCHEMA_ROOM]) {
    int length = snprintf(schema, GRAPH_SCHEMA_ROOM, "%s(", form->name);
    for (int i = 0; i < form->tensors; i++)
        length += snprintf(schema + length, GRAPH_SCHEMA_ROOM - (size_t)length, "Tensor t%d, ", i);
    length = add(schema, length, "int given, int axes, int options, int split, ");
    length = add(schema, length, form->kernel == graph_forward ? "float eps, " : "");
    length = add(schema, length, "float dropout_p) -> ");
    length = add(schema, length, form->results > 1 ? "(" : "");
    for (int i = 0; i < form->results; i++)
        length = add(schema, length, i ? ", Tensor" : "Tensor");
    add(schema, length, form->results > 1 ? ")" : "");
}

bool graph_form_at(int index, graph_form *form, char schema[GRAPH_SCHEMA_ROOM]) {
    const int forwards = FORWARD_INPUTS * FORWARD_OUTPUTS;
    const bool is_forward = index < forwards;
    const int outputs = is_forward ? FORWARD_OUTPUTS : BACKWARD_OUTPUTS;
    const int place = is_forward ? index : index - forwards;
    form->kernel = is_forward ? graph_forward : graph_backward;
    form->tensors = place / outputs + (is_forward ? 1 : BACKWARD_LEAST);
    form->results = place % outputs + 1;
    if (form->tensors > (is_forward ? FORWARD_INPUTS : BACKWARD_INPUTS))
        return false;
    snprintf(form->name, sizeof form->name, "%s.t%d_r%d",
             is_forward ? "graph_forward" : "graph_backward", form->tensors, form->results);
    write_schema(form, schema);
    return true;
}
