/* An allocator for measuring pimsim-nn: the addresses of large objects grow in the order in which they are allocated.
 *
 * pimsim-nn runs what happens at a clock edge in the order of the objects' addresses, so its figures depend on the
 * memory that earlier objects have left free. With this allocator, objects of 512 bytes or more (cores, array groups)
 * never reuse memory.
 *
 *     gcc -O2 -shared -fPIC -fno-builtin ordered.c -o ordered.so
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { LARGE = 512, ALIGN = 16 };
static const size_t RESERVED = (size_t)1 << 38;
static uintptr_t next;
static void *unused[LARGE / ALIGN];

static size_t *size_of(void *p) { return (size_t *)((char *)p - ALIGN); }

void *memalign(size_t align, size_t size) {
    if (!next)
        next = (uintptr_t)mmap(0, RESERVED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (align < ALIGN) align = ALIGN;
    void *p = (void *)((next + ALIGN + align - 1) & ~(align - 1));
    *size_of(p) = size = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    next = (uintptr_t)p + size;
    return p;
}

void *malloc(size_t size) {
    size = size ? (size + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    void *p = size < LARGE ? unused[size / ALIGN] : 0;
    if (!p) return memalign(ALIGN, size);
    unused[size / ALIGN] = *(void **)p;
    return p;
}

void free(void *p) {
    if (!p || *size_of(p) < ALIGN || *size_of(p) >= LARGE) return;
    *(void **)p = unused[*size_of(p) / ALIGN];
    unused[*size_of(p) / ALIGN] = p;
}

void *calloc(size_t count, size_t size) {
    void *p = malloc(count * size);
    return memset(p, 0, count * size);
}

void *realloc(void *old, size_t size) {
    void *p = malloc(size);
    if (old) memcpy(p, old, *size_of(old) < size ? *size_of(old) : size);
    free(old);
    return p;
}

void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }

int posix_memalign(void **p, size_t align, size_t size) {
    *p = memalign(align, size);
    return 0;
}
