/* The nodes of a graph while it is divided: which are still free, and which makes a value. */
#ifndef PLANISH_ORT_NODES_H
#define PLANISH_ORT_NODES_H

#include "graph.h"

typedef struct node_maker {
    const char *value;
    size_t node;
} node_maker;

typedef struct node_set {
    const ort_api *api;
    const ort_node **list;
    bool *is_taken;
    size_t count;
    node_maker *makers; /* sorted by the values' names */
    size_t maker_count;
} node_set;

/* Nodes of providers other than `own` are taken. Where the graph cannot be read, or there is no
 * memory, it has no nodes. */
node_set nodes_of(const ort_api *api, const ort_graph *graph, const char *own);
void nodes_free(node_set *nodes);

/* A node that is not in the graph is not free. */
bool nodes_is_free(const node_set *nodes, const ort_node *node);
void nodes_take(node_set *nodes, const ort_node *node);
/* The node of this graph that makes the value; NULL: it is an input or a constant. */
const ort_node *nodes_maker(const node_set *nodes, const ort_value_info *value);

/* The nodes that read a value which is no output of the graph, where they are at most two. */
typedef struct node_readers {
    const ort_node *list[2];
    int count; /* 0: more, or others than nodes */
} node_readers;
node_readers nodes_readers(const node_set *nodes, const ort_value_info *value);
/* The one node that reads it, if that is free and of this operator; else NULL. */
const ort_node *nodes_sole_reader(const node_set *nodes, const ort_value_info *value,
                                  const char *name);

#endif
