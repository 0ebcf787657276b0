/*
 * planish's own operators, for whoever calls their kernels without torch's dispatcher.
 */
#ifndef PLANISH_TORCH_OWN_OPERATORS_H
#define PLANISH_TORCH_OWN_OPERATORS_H

#include "aoti.h"

typedef struct own_operator {
    const char *schema;
    boxed_kernel kernel;
} own_operator;

/* Number `index` of them; NULL past the last. */
const own_operator *own_operator_at(int index);

#endif
