/*
 * planish's own operators under torch: their schemas, and the kernels that torch calls for each.
 */
#include <string.h>

#include "graph_norms.h"
#include "guard.h"
#include "kernels.h"
#include "own_operators.h"
#include "registry.h"

#define TENSORS_OF_STAGES                                                                          \
    "Tensor? row_scale, Tensor? column_scale, Tensor? rng, Tensor? weight, Tensor? bias, "         \
    "Tensor? scale, Tensor? shift, Tensor? gate, int axes, int options, int split, "

static const own_operator operators[] = {
    {"norm_forward(Tensor x, Tensor? residual, " TENSORS_OF_STAGES
     "float eps, float dropout_p) -> (Tensor, Tensor, Tensor, Tensor)",
     norm_forward},
    {"norm_backward(Tensor dy, Tensor s, Tensor rstd, Tensor? mean, Tensor? dsum, Tensor? "
     "branch, " TENSORS_OF_STAGES
     "float dropout_p) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
     "Tensor, Tensor)",
     norm_backward},
    {"norm_statistics(Tensor x, int axes) -> (Tensor, Tensor)", norm_statistics},
    {"quantized_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? y_scale, "
     "int axes, int options, float eps, int block, float least, float most) -> (Tensor, Tensor, "
     "Tensor)",
     quantized_norm},
    {"norm_into(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? y_scale, "
     "int axes, int options, float eps, Tensor(a!) out, Tensor(b!)? sum) -> ()",
     norm_into},
    {"norm_pair(Tensor first, Tensor second, Tensor? first_weight, Tensor? second_weight, "
     "int options, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
     norm_pair},
    {"norm_pair_backward(Tensor first_dy, Tensor second_dy, Tensor first, Tensor second, "
     "Tensor? first_mean, Tensor? second_mean, Tensor first_rstd, Tensor second_rstd, "
     "Tensor? first_weight, Tensor? second_weight, int options) -> (Tensor, Tensor, Tensor, "
     "Tensor)",
     norm_pair_backward},
    {"batch_norm(Tensor x, Tensor? addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
     "Tensor(b!)? running_var, int axes, int options, float momentum, float eps) -> (Tensor, "
     "Tensor, Tensor)",
     batch_norm},
    {"norm_part_statistics(Tensor x, int axes, int options) -> (Tensor, Tensor)",
     norm_part_statistics},
    {"norm_part_message(Tensor x, int axes, int options, int ranks) -> (Tensor, Tensor)",
     norm_part_message},
    {"norm_apply(Tensor x, Tensor spread, Tensor? mean, Tensor? addend, Tensor? weight, Tensor? "
     "bias, int axes, int options, float eps) -> Tensor",
     norm_apply},
    {"norm_backward_statistics(Tensor dy, Tensor x, Tensor rstd, Tensor? mean, Tensor? weight, "
     "int axes, int options, int ranks, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
     norm_backward_statistics},
    {"norm_backward_apply(Tensor dy, Tensor x, Tensor spread, Tensor? mean, Tensor? c1, Tensor? "
     "c2, "
     "Tensor? y, Tensor? addend, Tensor? weight, Tensor? bias, int axes, int options, float eps) "
     "-> (Tensor, Tensor, Tensor, Tensor)",
     norm_backward_apply},
    {"norm_part_apply(Tensor x, Tensor sent, Tensor? weight, Tensor? bias, int axes, int options, "
     "float eps) -> (Tensor, Tensor, Tensor, Tensor)",
     norm_part_apply},
    {"norm_part_backward_apply(Tensor dy, Tensor x, Tensor sent, Tensor shares, Tensor rstd, "
     "Tensor? mean, Tensor? weight, int axes, int options) -> Tensor",
     norm_part_backward_apply},
};

enum { OPERATOR_COUNT = sizeof operators / sizeof *operators, NAME_ROOM = 32 };

const own_operator *own_operator_at(int index) {
    return index < OPERATOR_COUNT ? &operators[index] : NULL;
}

/* The name of an operator, which its schema begins with. */
static const char *name_in(const char *schema, char name[NAME_ROOM]) {
    size_t length = strcspn(schema, "(");
    memcpy(name, schema, length);
    name[length] = 0;
    return name;
}

/* torch's records of planish's own operators: their definitions, and their kernels for the devices
 * that this torch has. They stay. */
enum { KEY_COUNT = 2 };
static const char *const keys[KEY_COUNT] = {"CPU", "CUDA"};
static library_handle planish_library, kernel_libraries[KEY_COUNT];

static planish_status open_libraries(message error) {
    if (torch.library_init_fragment("planish", "planish", 0, &planish_library) != 0) {
        planish_library = NULL;
        return fail(error, PLANISH_ERROR_DRIVER, "torch would not open the namespace planish: %s",
                    torch_last_words());
    }
    const int count = torch_has_cuda((message){0}) == PLANISH_OK ? KEY_COUNT : 1;
    for (int i = 0; i < count; i++)
        if (torch.library_init_impl("planish", keys[i], "planish", 0, &kernel_libraries[i]) != 0) {
            kernel_libraries[i] = NULL;
            return fail(error, PLANISH_ERROR_DRIVER, "torch would not open planish for key %s: %s",
                        keys[i], torch_last_words());
        }
    return PLANISH_OK;
}

static void close_libraries(void) {
    for (int i = 0; i < KEY_COUNT; i++)
        if (kernel_libraries[i]) {
            torch.library_delete(kernel_libraries[i]);
            kernel_libraries[i] = NULL;
        }
    if (planish_library)
        torch.library_delete(planish_library);
    planish_library = NULL;
}

static planish_status define_one(const char *schema, boxed_kernel kernel, message error) {
    if (torch.library_define(planish_library, schema) != 0)
        return fail(error, PLANISH_ERROR_DRIVER, "torch would not define planish::%s: %s", schema,
                    torch_last_words());
    char name[NAME_ROOM];
    name_in(schema, name);
    for (int i = 0; i < KEY_COUNT; i++)
        if (kernel_libraries[i] &&
            torch.library_implement(kernel_libraries[i], name, kernel, TORCH_BUILD_VERSION) != 0)
            return fail(error, PLANISH_ERROR_DRIVER,
                        "torch would not register planish::%s for key %s: %s", name, keys[i],
                        torch_last_words());
    return PLANISH_OK;
}

static planish_status define_all(message error) {
    planish_status status = open_libraries(error);
    for (int i = 0; i < OPERATOR_COUNT && status == PLANISH_OK; i++)
        status = define_one(operators[i].schema, operators[i].kernel, error);
    graph_form form;
    char schema[GRAPH_SCHEMA_ROOM];
    for (int i = 0; status == PLANISH_OK && graph_form_at(i, &form, schema); i++)
        status = define_one(schema, form.kernel, error);
    return status;
}

static planish_status define(void *context, message error) {
    (void)context;
    planish_status status = registry_prepare(error);
    if (status != PLANISH_OK || planish_library)
        return status;
    status = define_all(error);
    if (status != PLANISH_OK)
        close_libraries();
    return status;
}

planish_status planish_torch_define(char *text, size_t bytes) {
    return guarded(define, NULL, (message){text, bytes});
}
