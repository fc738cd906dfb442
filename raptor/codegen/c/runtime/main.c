/* Runs a compiled program on a computer with files:
 *
 *     ./chip FOLDER INPUTS OUTPUTS [CAPTURED] [-n TIMES]
 *
 * FOLDER is the output directory. INPUTS is the part of global memory before the constants, OUTPUTS the part after them,
 * both as memory.json describes them: float32 for each element of a program of floats, else bytes. CAPTURED gets the
 * tensors of layers.json. With -n, the sample runs TIMES times, and the seconds of one are printed. */
#include "pim.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void pim_fail(const char *message) {
    fprintf(stderr, "chip: %s\n", message);
    exit(2);
}

static void fail_about(const char *name, const char *reason) {
    fprintf(stderr, "chip: %s: %s\n", name, reason);
    exit(2);
}

/* Reads a file, which must have `wanted` bytes unless that is negative. */
static char *read_file(const char *folder, const char *name, long wanted, long *size) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s%s%s", folder, *folder ? "/" : "", name) >= (int)sizeof path)
        fail_about(name, "the path is too long");
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) fail_about(path, "cannot be read");
    long found = ftell(file);
    if (found < 0 || (wanted >= 0 && found != wanted)) fail_about(path, "has the wrong size");
    rewind(file);
    char *content = malloc((size_t)found + 8);
    if (!content || fread(content, 1, (size_t)found, file) != (size_t)found) fail_about(path, "cannot be read");
    fclose(file);
    if (size) *size = found;
    return content;
}

static void write_file(const char *path, const char *content, long size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(content, 1, (size_t)size, file) != (size_t)size || fclose(file)) fail_about(path, "cannot be written");
}

/* Returns whether `size` units at `at` lie in a memory of `units`. */
static int inside(int64_t at, int64_t size, int64_t units) { return at >= 0 && size >= 0 && at + size <= units; }

static int on_core(int core, int64_t at, int64_t size) {
    return core >= 0 && core < pim_core_count && inside(at, size, pim_local_units[core]);
}

/* Returns the number of words of the step at `s`, of which `left` words are there; 0 if it is wrong. */
static long check_step(const int32_t *s, long left) {
    static const int words[] = {1, 5, 5, 6, 5, 5};
    if (left < 1 || s[0] < 0 || s[0] > 5 || left < words[s[0]]) return 0;
    switch (s[0]) {
    case 0: return 1;
    case 1:
    case 2: return on_core(s[1], s[2], s[4]) && inside(s[3], s[4], pim_global_units) ? 5 : 0;
    case 3: return on_core(s[1], s[2], s[5]) && on_core(s[3], s[4], s[5]) ? 6 : 0;
    case 4: return on_core(s[1], s[2], s[4]) && inside(s[3], s[4], pim_captured_units) ? 5 : 0;
    }
    if (s[1] < 0 || s[1] >= pim_form_count || !pim_forms[s[1]] || s[4] < 0 || s[4] > pim_most_slots) return 0;
    if (left < 5 + s[4] || !on_core(s[2], 0, 0) || s[3] < 0 || s[3] > pim_matrix_count) return 0;
    for (int i = 0; i < s[4]; i++)
        if (!on_core(s[2], s[5 + i], 0)) return 0;
    return 5 + s[4];
}

/* steps.bin: the number of words of the first list, then two lists, each with an END. */
static const int32_t *read_steps(const char *folder) {
    long size, at = 1;
    const int32_t *steps = (const int32_t *)read_file(folder, "steps.bin", -1, &size);
    long count = size / 4;
    for (int list = 0; list < 2; list++) {
        long found;
        do {
            found = check_step(steps + at, count - at);
            if (!found) fail_about("steps.bin", "is no list of steps of this program");
            at += found;
        } while (found != 1);
        if (list == 0 && at != 1 + (long)steps[0]) fail_about("steps.bin", "has lists of other lengths");
    }
    if (4 * at != size) fail_about("steps.bin", "has words after its end");
    return steps;
}

/* Constants are a .npy file: a header whose length is in bytes 8 and 9, then the values. */
static void read_constants(const char *folder) {
    long size, wanted = (long)((pim_outputs_at - pim_constants_at) * pim_unit);
    char *content = read_file(folder, "weights/constants.npy", -1, &size);
    if (size < 10 || memcmp(content, "\x93NUMPY\x01", 7)) fail_about("weights/constants.npy", "is no array");
    long header = 10 + (unsigned char)content[8] + 256 * (unsigned char)content[9];
    if (size - header != wanted) fail_about("weights/constants.npy", "has the wrong size");
    memcpy(pim_global + pim_constants_at * pim_unit, content + header, (size_t)wanted);
    free(content);
}

int main(int count, char **words) {
    char *names[4] = {0};
    int given = 0;
    long times = 1;
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "-n") && i + 1 < count) times = atol(words[++i]);
        else if (given < 4) names[given++] = words[i];
        else given = 5;
    }
    if (given < 3 || given > 4 || times < 1) pim_fail("usage: chip FOLDER INPUTS OUTPUTS [CAPTURED] [-n TIMES]");
    const int32_t *steps = read_steps(names[0]);
    if (pim_start(steps, read_file(names[0], "weights.bin", (long)pim_weights_bytes, NULL))) pim_fail("out of memory");
    read_constants(names[0]);
    long inputs = (long)(pim_constants_at * pim_unit), captures = (long)(pim_captured_units * pim_unit);
    memcpy(pim_global, read_file("", names[1], inputs, NULL), (size_t)inputs);
    char *captured = names[3] ? malloc((size_t)captures + 1) : NULL;
    if (names[3] && !captured) pim_fail("out of memory");
    pim_init();
    clock_t start = clock();
    for (long i = 0; i < times; i++) pim_sample(captured);
    if (times > 1) printf("%.6f s per sample\n", (double)(clock() - start) / CLOCKS_PER_SEC / (double)times);
    write_file(names[2], pim_global + pim_outputs_at * pim_unit, (long)((pim_global_units - pim_outputs_at) * pim_unit));
    if (captured) write_file(names[3], captured, captures);
    return 0;
}
