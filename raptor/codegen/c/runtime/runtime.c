/* Executes the steps of a compiled program. See pim.h. */
#include "pim.h"

#include <stdlib.h>

/* Kinds of steps in steps.bin; words after each: see raptor/codegen/c/step_table.py. */
enum { END, LOAD, STORE, MESSAGE, CAPTURE, FORM };

char *pim_global;
static char **local;
static char **slots;
static const int32_t *init_steps, *sample_steps;

int pim_start(const int32_t *steps, const char *weights) {
    init_steps = steps + 1;
    sample_steps = steps + 1 + steps[0];
    for (int i = 0; i < pim_matrix_count; i++) pim_all_matrices[i].weights = weights + pim_all_matrices[i].offset;
    pim_global = malloc((size_t)(pim_global_units * pim_unit) + 4);
    local = calloc((size_t)pim_core_count + 1, sizeof *local);
    slots = calloc((size_t)pim_most_slots + 1, sizeof *slots);
    if (!pim_global || !local || !slots) return -1;
    memset(pim_global, 0xff, (size_t)(pim_global_units * pim_unit));
    for (int i = 0; i < pim_core_count; i++) {
        size_t size = (size_t)pim_local_units[i] * (size_t)pim_unit;
        if (!(local[i] = malloc(size + 4))) return -1;
        memset(local[i], 0xff, size); /* NaN: a float that is read before it is written shows in the outputs */
    }
    return 0;
}

static void run(const int32_t *s, char *captured) {
    const long unit = pim_unit;
    for (;;) switch (*s) {
        case END:
            return;
        case LOAD:
            memcpy(local[s[1]] + s[2] * unit, pim_global + s[3] * unit, (size_t)(s[4] * unit));
            s += 5;
            break;
        case STORE:
            memcpy(pim_global + s[3] * unit, local[s[1]] + s[2] * unit, (size_t)(s[4] * unit));
            s += 5;
            break;
        case MESSAGE:
            memcpy(local[s[3]] + s[4] * unit, local[s[1]] + s[2] * unit, (size_t)(s[5] * unit));
            s += 6;
            break;
        case CAPTURE:
            if (captured) memcpy(captured + s[3] * unit, local[s[1]] + s[2] * unit, (size_t)(s[4] * unit));
            s += 5;
            break;
        case FORM:
            for (int i = 0; i < s[4]; i++) slots[i] = local[s[2]] + s[5 + i] * unit;
            pim_forms[s[1]](slots, pim_matrices[s[2]] + s[3]);
            s += 5 + s[4];
            break;
        default:
            pim_fail("steps.bin: unknown kind of step");
            return;
        }
}

void pim_init(void) { run(init_steps, NULL); }

void pim_sample(char *captured) { run(sample_steps, captured); }

/* Products of floats add the rows in order, and round every product and every sum: build with -ffp-contract=off. A
 * cell with weight 0 conducts nothing, even if its input is infinite; this is looked at only if a NaN shows. */
static void mvm_floats(int rows, int cols, const float *w, const char *x, char *y) {
    int bad = 0;
    float t[cols];
    for (int j = 0; j < cols; j++) t[j] = 0;
    for (int i = 0; i < rows; i++, w += cols) {
        float v = pim_ld_f32(x, i);
        for (int j = 0; j < cols; j++) t[j] += v * w[j];
    }
    for (int j = 0; j < cols; j++) bad |= t[j] != t[j];
    if (bad) {
        w -= (long)rows * cols;
        for (int j = 0; j < cols; j++) t[j] = 0;
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++)
                if (w[i * (long)cols + j] != 0 || !isinf(pim_ld_f32(x, i))) t[j] += pim_ld_f32(x, i) * w[i * (long)cols + j];
    }
    memcpy(y, t, sizeof(float) * (size_t)cols);
}

static int64_t load(pim_type type, const char *p, long i) {
    switch (type) {
    case PIM_I8: return pim_ld_i8(p, i);
    case PIM_I16: return pim_ld_i16(p, i);
    case PIM_I24: return pim_ld_i24(p, i);
    default: return pim_ld_i32(p, i);
    }
}

static void store(pim_type type, char *p, long i, int64_t v) {
    switch (type) {
    case PIM_I8: pim_st_i8(p, i, v); break;
    case PIM_I16: pim_st_i16(p, i, v); break;
    case PIM_I24: pim_st_i24(p, i, v); break;
    default: pim_st_i32(p, i, v);
    }
}

#define ADD_ROWS(T, V)                                                                           \
    do {                                                                                         \
        const V *w = m->weights;                                                                 \
        for (int i = 0; i < m->rows; i++, w += m->cols) {                                        \
            T v = (T)load(x_type, x, i);                                                         \
            for (int j = 0; j < m->cols; j++) t[j] += v * w[j];                                  \
        }                                                                                        \
    } while (0)

/* Sums of products that fit 32 bits may wrap on the way: unsigned addition is exact modulo 2^32. */
static void mvm_integers(const pim_matrix *m, pim_type x_type, const char *x, pim_type y_type, char *y) {
    uint32_t t[m->cols];
    memset(t, 0, sizeof t);
    if (m->type == PIM_I8) ADD_ROWS(uint32_t, int8_t);
    else if (m->type == PIM_I16) ADD_ROWS(uint32_t, int16_t);
    else ADD_ROWS(uint32_t, int32_t);
    for (int j = 0; j < m->cols; j++) store(y_type, y, j, (int32_t)t[j]);
}

__attribute__((weak)) void pim_mvm(const pim_matrix *m, pim_type x_type, const void *x, pim_type y_type, void *y) {
    if (m->type == PIM_F32) mvm_floats(m->rows, m->cols, m->weights, x, y);
    else mvm_integers(m, x_type, x, y_type, y);
}

void pim_move(char *to, const char *from, long bytes, long count, long size) {
    for (long i = 0; i < count; i++) memcpy(to + i * size, from + i * bytes, (size_t)size);
}

void pim_softmax(char *y, const char *x, int n) {
    float largest = pim_ld_f32(x, 0);
    double power[n], total = 0;
    for (int i = 0; i < n; i++) {
        float v = pim_ld_f32(x, i);
        if (v > largest || v != v) largest = v;
    }
    for (int i = 0; i < n; i++) total += power[i] = exp((double)pim_ld_f32(x, i) - (double)largest);
    for (int i = 0; i < n; i++) pim_st_f32(y, i, (float)(power[i] / total));
}

void pim_load_row(char *y, long bytes, int64_t id, int64_t table, int64_t stride, int64_t rows) {
    const char *at = pim_global + id * pim_unit;
    double row = pim_unit == 4 ? pim_ld_f32(at, 0) : (double)pim_ld_i32(at, 0);
    if (!(row >= 0 && row < (double)rows && row == floor(row))) {
        pim_fail("an id is not the number of a row of its table");
        return;
    }
    memcpy(y, pim_global + (table + (int64_t)row * stride) * pim_unit, (size_t)bytes);
}

int64_t pim_requantise(int64_t x, const char *p) {
    int64_t sum = x + pim_ld_i32(p, 0), factor = pim_ld_i32(p, 1), shift = pim_ld_i16(p, 4);
    uint64_t a = (uint64_t)(sum < 0 ? -sum : sum), b = (uint64_t)(factor < 0 ? -factor : factor), product = a * b, q = 0;
    if (shift == 0) {
        q = product;
    } else if (shift < 64) {
        uint64_t rest = product & ((1ull << shift) - 1), half = 1ull << (shift - 1);
        q = product >> shift;
        if (rest > half || (rest == half && (q & 1))) q++;
    }
    if (q > 1ull << 62) q = 1ull << 62;
    int64_t found = (sum < 0) != (factor < 0) ? -(int64_t)q : (int64_t)q;
    return pim_min(pim_max(found + pim_ld_i16(p, 5), pim_ld_i16(p, 6)), pim_ld_i16(p, 7));
}
