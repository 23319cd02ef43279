/* A zone: one fixed piece of shared memory, cut into shards, each with its lock, its journal and its table.
 *
 *   | sign | shard 0                                            | shard 1 ...
 *          | lock | journal | head | owners | buckets | slots   |
 *
 * The lock is a robust one of the C library: the kernel itself hands it on when its holder dies, however it dies. Rejected: a lock of
 * our own with the holder's process id, which has to guess who is dead (process ids are used again, and differ between containers).
 */
#define _GNU_SOURCE
#include "zone.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

const char *zone_open_private(struct zone *z, uint32_t most_keys)
{
    z->shards = 1;
    z->is_shared = 0;
    z->shard = NULL;
    z->table = calloc(1, sizeof *z->table);
    if (z->table == NULL || table_init_private(z->table, most_keys) < 0)
        return "there is no memory left";
    return NULL;
}

#if SHARES

#define SIGN UINT64_C(0x44696e6132303031)
#define LAYOUT 2
#if defined(__GLIBC__)
#define LIBRARY 1
#else
#define LIBRARY 2
#endif

struct sign {
    uint64_t sign, layout, size, fits;
};

struct shard {
    union {
        pthread_mutex_t lock;
        char room[64];
    } of;
    struct journal journal;
    struct head head; /* and then owners, buckets, slots */
};

/* Processes that would read it otherwise: another C library's locks, other sizes. */
static uint64_t fits(void)
{
    return (uint64_t)LIBRARY << 56 | (uint64_t)sizeof(struct shard) << 32 |
           (uint64_t)sizeof(pthread_mutex_t) << 24 | (uint64_t)sizeof(struct owner) << 8 |
           sizeof(struct slot);
}

static uint64_t rounded(uint64_t size) { return (size + 63) & ~UINT64_C(63); }

struct plan {
    uint32_t shards, slots, owners;
    uint64_t first, step, owners_at, buckets_at, slots_at; /* from the shard on, but for the first */
};

static const char *planned(uint64_t size, struct plan *p)
{
    p->first = 4096;
    if (size < SMALLEST_ZONE)
        return "it is too small";
    p->shards = 1;
    while (p->shards < MOST_SHARDS && (size - p->first) / (p->shards * 2) >= SMALLEST_SHARD)
        p->shards *= 2;
    p->step = (size - p->first) / p->shards & ~UINT64_C(63);
    uint64_t left = p->step - rounded(sizeof(struct shard)) - 1024;
    uint64_t each = sizeof(struct slot) + sizeof(uint32_t) + sizeof(struct owner) / 64 + 1;
    uint64_t slots = left / each;
    if (slots > UINT32_MAX / 4)
        slots = UINT32_MAX / 4;
    uint64_t owners = slots / 64;
    p->slots = (uint32_t)slots;
    p->owners = owners > MOST_OWNERS ? MOST_OWNERS : (uint32_t)owners;
    p->owners_at = rounded(sizeof(struct shard));
    p->buckets_at = rounded(p->owners_at + p->owners * sizeof(struct owner));
    p->slots_at = rounded(p->buckets_at + slots * sizeof(uint32_t));
    return NULL;
}

static void look_at(struct table *t, struct shard *shard, const struct plan *p)
{
    char *at = (char *)shard;
    memset(t, 0, sizeof *t);
    t->head = &shard->head;
    t->journal = &shard->journal;
    t->owner = (struct owner *)(at + p->owners_at);
    t->bucket = (uint32_t *)(at + p->buckets_at);
    t->slot = (struct slot *)(at + p->slots_at);
    t->slots = p->slots - 1; /* the first is no slot */
    t->owners = p->owners;
    t->most_keys = t->slots;
    t->most_used = t->slots - t->slots / 16;
}

static struct shard *shard_at(void *body, const struct plan *p, uint32_t number)
{
    return (struct shard *)((char *)body + p->first + number * p->step);
}

static const char *make_lock(struct shard *shard)
{
    pthread_mutexattr_t how;
    memset(&shard->of, 0, sizeof shard->of);
    if (pthread_mutexattr_init(&how) ||
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED) ||
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST) ||
        pthread_mutexattr_settype(&how, PTHREAD_MUTEX_ERRORCHECK) ||
        pthread_mutex_init(&shard->of.lock, &how))
        return "this machine has no locks that survive their holder";
    pthread_mutexattr_destroy(&how);
    return NULL;
}

const char *zone_lay_out(void *body, uint64_t size)
{
    struct plan p;
    const char *wrong = planned(size, &p);
    for (uint32_t number = 0; wrong == NULL && number < p.shards; number++) {
        struct table t;
        struct shard *shard = shard_at(body, &p, number);
        look_at(&t, shard, &p);
        wrong = make_lock(shard);
        memset(t.head, 0, sizeof *t.head);
        table_empty(&t);
        commit(&t);
    }
    if (wrong == NULL) {
        struct sign *sign = body;
        *sign = (struct sign){SIGN, LAYOUT, size, fits()};
    }
    return wrong;
}

static const char *is_other(const void *body, uint64_t size)
{
    const struct sign *sign = body;
    if (size < sizeof *sign || sign->sign != SIGN)
        return "it holds something else";
    if (sign->layout != LAYOUT || sign->fits != fits())
        return "another build of Diana laid it out";
    if (sign->size != size)
        return "it was laid out in another size";
    return NULL;
}

const char *zone_adopt(void *body, uint64_t size)
{
    struct plan p;
    const char *wrong = is_other(body, size);
    if (wrong == NULL)
        wrong = planned(size, &p);
    for (uint32_t number = 0; wrong == NULL && number < p.shards; number++) {
        struct table t;
        struct shard *shard = shard_at(body, &p, number);
        look_at(&t, shard, &p);
        wrong = make_lock(shard);
        if (t.journal->count > 0)
            journal_undo(&t);
    }
    return wrong;
}

const char *zone_open_shared(struct zone *z, void *body, uint64_t size)
{
    struct plan p;
    const char *wrong = is_other(body, size);
    if (wrong == NULL)
        wrong = planned(size, &p);
    if (wrong != NULL)
        return wrong;
    z->is_shared = 1;
    z->shards = p.shards;
    z->table = calloc(p.shards, sizeof *z->table);
    z->shard = calloc(p.shards, sizeof *z->shard);
    if (z->table == NULL || z->shard == NULL)
        return "there is no memory left";
    for (uint32_t number = 0; number < p.shards; number++) {
        z->shard[number] = shard_at(body, &p, number);
        look_at(&z->table[number], z->shard[number], &p);
    }
    return NULL;
}

/* The numbers by which memory is reached must be within bounds, whatever a damaged file says. */
static void check_head(struct table *t)
{
    struct head *head = t->head;
    if (head->buckets != t->most_keys || head->mask < head->buckets - 1 ||
        (head->mask >> 1) >= head->buckets || (head->mask & (head->mask + 1)) != 0 ||
        head->fresh < 1 || head->fresh > t->slots + 1 || head->used >= head->fresh ||
        head->keys > head->used || head->owner_fresh > t->owners || head->owners > head->owner_fresh) {
        table_empty(t);
        commit(t);
    }
}

static int taken(struct zone *z, uint32_t shard, int error)
{
    struct table *t = &z->table[shard];
    if (error == EOWNERDEAD) {
        journal_undo(t);
        check_head(t);
        t->head->recovered++;
        pthread_mutex_consistent(&z->shard[shard]->of.lock);
        return 1;
    }
    if (error != 0)
        return 0;
    check_head(t);
    return 1;
}

int shard_try(struct zone *z, uint32_t shard)
{
    for (int turns = 0;; turns++) {
        int error = pthread_mutex_trylock(&z->shard[shard]->of.lock);
        if (error != EBUSY)
            return taken(z, shard, error);
        if (turns == 100)
            return 0;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

int shard_wait(struct zone *z, uint32_t shard, int milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int error = pthread_mutex_timedlock(&z->shard[shard]->of.lock, &until);
    if (error != 0 && error != ETIMEDOUT && error != EOWNERDEAD) {
        struct timespec a_little = {0, 1000000}; /* no lock at all: the file is damaged */
        nanosleep(&a_little, NULL);
    }
    return taken(z, shard, error);
}

void shard_release(struct zone *z, uint32_t shard)
{
    struct table *t = &z->table[shard];
    if (t->broken)
        table_empty(t);
    commit(t);
    pthread_mutex_unlock(&z->shard[shard]->of.lock);
}

#else

static const char *nowhere = "zones in C need Linux";
const char *zone_lay_out(void *body, uint64_t size) { (void)body, (void)size; return nowhere; }
const char *zone_adopt(void *body, uint64_t size) { (void)body, (void)size; return nowhere; }
const char *zone_open_shared(struct zone *z, void *body, uint64_t size)
{
    (void)z, (void)body, (void)size;
    return nowhere;
}
int shard_try(struct zone *z, uint32_t shard) { (void)z, (void)shard; return 0; }
int shard_wait(struct zone *z, uint32_t shard, int ms) { (void)z, (void)shard, (void)ms; return 0; }
void shard_release(struct zone *z, uint32_t shard) { (void)z, (void)shard; }

#endif

void zone_close(struct zone *z)
{
    if (!z->is_shared && z->table != NULL)
        table_free_private(z->table);
    free(z->table);
    free(z->shard);
    z->table = NULL;
    z->shard = NULL;
}
