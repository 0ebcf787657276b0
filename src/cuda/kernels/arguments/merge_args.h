/* What parts of rows sent, and where what they make together goes, for C and for the kernel
 * (../../words.h; kernels/common/merge.cu has the formulas). */
#ifndef PLANISH_CUDA_MERGE_ARGS_H
#define PLANISH_CUDA_MERGE_ARGS_H

enum { MERGE_THREADS = 128 };

typedef struct merge_args {
    const double *sent;      /* [parts][stride]: (n,) what is first of each row, what is second */
    const double *shares;    /* of c1 and c2: of each part; NULL: of statistics, where n is sent */
    double *made_shares;     /* of statistics */
    double *first, *second;  /* mean and rstd, or c1 and c2; first NULL: without a mean */
    double eps;              /* without parts: what each row's second becomes */
    i64 parts, stride, rows; /* stride: from part to part */
    i64 l2;                  /* of an L2 norm: every share is 1, and eps the least length */
} merge_args;

#endif
