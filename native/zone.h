/* Counters as a process holds them: one table in private memory, or the shards of a zone that all processes of a machine map. */
#ifndef DIANA_ZONE_H
#define DIANA_ZONE_H

#include "table.h"

#if defined(__linux__)
#include <pthread.h>
#define SHARES 1
#else
#define SHARES 0
#endif

#define MOST_SHARDS 64
#define SMALLEST_ZONE (UINT64_C(260) * 1024)
/* Keys do not move from one shard to another, so shards are large: a few that need much room fit into one. */
#define SMALLEST_SHARD (UINT64_C(3584) * 1024)

struct shard; /* a table in shared memory, with its lock: zone.c */

struct zone {
    uint32_t shards; /* a power of two; one in private memory */
    int is_shared;
    int64_t epoch_offset_us;
    uint8_t secret[16];
    struct table *table;
    struct shard **shard; /* NULL in private memory */
};

static inline uint32_t shard_of(const struct zone *z, struct hash hash)
{
    return (uint32_t)(hash.half[1] >> 32) & (z->shards - 1);
}

/* All return 0 or what is wrong, in words. */
const char *zone_open_private(struct zone *z, uint32_t most_keys);
/* All zeros at first. */
const char *zone_lay_out(void *body, uint64_t size);
/* No other process uses it: locks anew, and what the dead had begun is undone. */
const char *zone_adopt(void *body, uint64_t size);
const char *zone_open_shared(struct zone *z, void *body, uint64_t size);
void zone_close(struct zone *z);

/* 1: taken; 0: somebody else has it. Waiting is up to at most so many milliseconds. */
int shard_try(struct zone *z, uint32_t shard);
int shard_wait(struct zone *z, uint32_t shard, int milliseconds);
void shard_release(struct zone *z, uint32_t shard);

#endif
