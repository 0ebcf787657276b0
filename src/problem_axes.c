/* Lists of a problem's axes: neighbours that are one axis, and which there are once tensors are
 * gone.
 */
#include "problem_axes.h"

void axes_begin(problem *p) {
    p->places = FIRST_PLACE;
    memset(p->place, PLACE_OF_NONE, sizeof p->place);
    p->place[ROLE_COUNT] = PLACE_OF_INDEX;
    for (role_set rest = p->present; rest; rest &= rest - 1)
        p->place[first_role(rest)] = (uint8_t)p->places++;
    memset(p->strides, 0, (size_t)p->places * sizeof *p->strides);
    p->stride_count = p->places;
    p->kept_count = p->reduced_count = 0;
}

bool axes_append(problem *p, axis list[], int *count, const axis *next) {
    axis *last = *count ? &list[*count - 1] : NULL;
    bool merges = last && last->affine == next->affine && last->column == next->column &&
                  last->modulated == next->modulated;
    int64_t span; /* an empty tensor may have strides of any size */
    for (int i = 0; merges && i < p->places; i++)
        merges = !__builtin_mul_overflow(p->strides[next->at + i], next->size, &span) &&
                 p->strides[last->at + i] == span;
    if (!merges) {
        list[(*count)++] = *next;
        return true;
    }
    last->size *= next->size;
    memcpy(&p->strides[last->at], &p->strides[next->at], (size_t)p->places * sizeof *p->strides);
    return false;
}

int64_t axes_size(const axis list[], int count) {
    int64_t size = 1;
    for (int i = 0; i < count; i++)
        size *= list[i].size;
    return size;
}

/* A list without the stages' tensors and what follows from them; `used`: places that are left. */
static void drop_stages(problem *p, axis list[], int *count, uint64_t used) {
    const int before = *count;
    *count = 0;
    for (int i = 0; i < before; i++) {
        const axis left = {.size = list[i].size, .at = list[i].at, .affine = list[i].affine};
        for (int place = 0; place < p->places; place++)
            if (!(used >> place & 1))
                p->strides[left.at + place] = 0;
        axes_append(p, list, count, &left);
    }
}

void problem_drop_stages(problem *p) {
    uint64_t used = 0;
    for (role r = 0; r < NORM_ROLES; r++)
        used |= (uint64_t)1 << p->place[r];
    for (role r = NORM_ROLES; r < ROLE_COUNT; r++) {
        p->dtypes[r] = DTYPE_NONE;
        p->place[r] = PLACE_OF_NONE;
    }
    p->present &= ~STAGE_ROLES;
    p->outputs &= ~STAGE_ROLES;
    p->stages = (stages){.sum = DTYPE_NONE, .blocks = 1};
    drop_stages(p, p->kept, &p->kept_count, used);
    drop_stages(p, p->reduced, &p->reduced_count, used);
}
