/*
 * The forms of planish's norms that stand in compiled graphs, one for each number of tensors and of
 * results; graph_norms.c says what they take and return.
 */
#ifndef PLANISH_TORCH_GRAPH_NORMS_H
#define PLANISH_TORCH_GRAPH_NORMS_H

#include "aoti.h"

enum { GRAPH_NAME_ROOM = 32, GRAPH_SCHEMA_ROOM = 512 };

typedef struct graph_form {
    char name[GRAPH_NAME_ROOM]; /* with its overload */
    boxed_kernel kernel;
    int tensors, results;
} graph_form;

/* The form of this number, from 0 on, with its schema; false behind the last. */
bool graph_form_at(int index, graph_form *form, char schema[GRAPH_SCHEMA_ROOM]);

#endif
