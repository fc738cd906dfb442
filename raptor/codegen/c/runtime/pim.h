/* A compiled program in C: cores with a local memory and crossbars each, a global memory, and one list of steps.
 *
 * program.c holds what is special about a model: a function for each form of step, and the sizes of matrices and
 * memories. steps.bin is the list of steps, weights.bin the matrices. runtime.c executes them; main.c reads the files.
 * Without a file system, replace main.c: it needs pim_start, pim_init and pim_sample only. */
#ifndef PIM_H
#define PIM_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Types of elements. Integers are signed, in two's complement, the low byte first; I24 has three bytes. */
typedef enum { PIM_F32, PIM_I8, PIM_I16, PIM_I24, PIM_I32 } pim_type;

/* The matrix of an array group: adjacent crossbars of a core. */
typedef struct {
    int core, group;
    int rows, cols;
    pim_type type;
    int64_t offset;      /* bytes in weights.bin */
    const void *weights; /* [rows][cols] */
} pim_matrix;

/* y = x times the matrix. The hook of a matrix unit: define it in a file of your own, and that definition is used in
 * place of the loops in runtime.c. x has m->rows elements, y has m->cols; both lie in the core's local memory, at any
 * address for I24, else at a multiple of the size. Every sum of integers fits the type of y. */
void pim_mvm(const pim_matrix *m, pim_type x_type, const void *x, pim_type y_type, void *y);

/* A step: its buffers in local memory, in the order of the form's slots, and the matrices of the core. */
typedef void (*pim_form)(char *const *p, const pim_matrix *w);

/* Defined by program.c. Sizes and addresses count units of pim_unit bytes. */
extern const pim_form pim_forms[];
extern pim_matrix *const pim_matrices[]; /* of each core */
extern pim_matrix pim_all_matrices[];
extern const int pim_form_count, pim_matrix_count, pim_core_count, pim_unit, pim_most_slots;
extern const int pim_local_units[];
extern const int64_t pim_global_units, pim_constants_at, pim_outputs_at, pim_captured_units, pim_weights_bytes;

/* Defined by runtime.c. */
extern char *pim_global; /* global memory: inputs, constants, outputs (memory.json) */
int pim_start(const int32_t *steps, const char *weights); /* 0, or -1 without enough memory */
void pim_init(void);                                      /* the steps after power-up, before the first sample */
void pim_sample(char *captured); /* one sample; tensors inside go to `captured` unless it is NULL (layers.json) */

/* Defined by main.c. */
void pim_fail(const char *message);

/* Elements in memory, as float or int64_t. */
static inline float pim_ld_f32(const char *p, long i) { float v; memcpy(&v, p + 4 * i, 4); return v; }
static inline int64_t pim_ld_i8(const char *p, long i) { return (int8_t)p[i]; }
static inline int64_t pim_ld_i16(const char *p, long i) { int16_t v; memcpy(&v, p + 2 * i, 2); return v; }
static inline int64_t pim_ld_i32(const char *p, long i) { int32_t v; memcpy(&v, p + 4 * i, 4); return v; }
static inline int64_t pim_ld_i24(const char *p, long i) {
    const unsigned char *q = (const unsigned char *)p + 3 * i;
    return (int32_t)((uint32_t)q[0] << 8 | (uint32_t)q[1] << 16 | (uint32_t)q[2] << 24) >> 8;
}
static inline void pim_st_f32(char *p, long i, float v) { memcpy(p + 4 * i, &v, 4); }
static inline void pim_st_i8(char *p, long i, int64_t v) { p[i] = (char)v; }
static inline void pim_st_i16(char *p, long i, int64_t v) { int16_t w = (int16_t)v; memcpy(p + 2 * i, &w, 2); }
static inline void pim_st_i32(char *p, long i, int64_t v) { int32_t w = (int32_t)v; memcpy(p + 4 * i, &w, 4); }
static inline void pim_st_i24(char *p, long i, int64_t v) {
    for (int k = 0; k < 3; k++) p[3 * i + k] = (char)(v >> 8 * k);
}

/* Functions of elements: floats as in the validator, transcendental ones in double, rounded once. */
static inline float pim_maxf(float a, float b) { return a >= b || a != a ? a : b; }
static inline float pim_reluf(float a) { return a < 0 ? 0 : a; }
static inline float pim_maskf(float a, float b) { return b > 0 ? a : -INFINITY; }
static inline int64_t pim_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t pim_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline float pim_sigmoid(float a) {
    double u = a;
    return (float)(u >= 0 ? 1 / (1 + exp(-u)) : exp(u) / (1 + exp(u)));
}
static inline int64_t pim_round(float a, double low, double high) { /* ties to even, saturated */
    return (int64_t)rint(fmin(fmax(a, low), high));
}

void pim_move(char *to, const char *from, long bytes, long count, long size); /* elements, `bytes` apart */
void pim_softmax(char *y, const char *x, int n);                              /* of floats */
void pim_load_row(char *y, long bytes, int64_t id, int64_t table, int64_t stride, int64_t rows);
int64_t pim_requantise(int64_t x, const char *parameters); /* bias, factor (32 bits), shift, zero, low, high (16) */

#endif
