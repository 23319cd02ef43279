/* Slots: found by their hash, taken and given back. */
#include "table.h"

#include <stdlib.h>

static inline uint32_t bucket_of(const struct head *head, uint64_t half)
{
    uint32_t bucket = (uint32_t)half & head->mask;
    return bucket < head->buckets ? bucket : bucket & (head->mask >> 1);
}

uint32_t table_find(struct table *t, struct hash hash)
{
    uint32_t found = t->bucket[bucket_of(t->head, hash.half[0])], steps = 0;
    while (slot_is_there(t, found)) {
        const struct slot *s = &t->slot[found];
        __builtin_prefetch(&s->expires); /* most slots lie in two lines of the cache */
        if (s->hash[0] == hash.half[0] && s->hash[1] == hash.half[1])
            return found;
        found = s->chain;
        if (++steps > t->slots) {
            t->broken = 1;
            break;
        }
    }
    return NONE;
}

/* In private memory: one more bucket, filled with those of its elder that belong there. */
static void split(struct table *t)
{
    struct head *head = t->head;
    uint32_t young = head->buckets, elder = young & (head->mask >> 1);
    uint32_t at = t->bucket[elder], stay = NONE, move = NONE;
    if (head->buckets++ == head->mask)
        head->mask = head->mask * 2 + 1;
    while (at != NONE) {
        struct slot *s = &t->slot[at];
        uint32_t next = s->chain, *into = bucket_of(head, s->hash[0]) == young ? &move : &stay;
        s->chain = *into;
        *into = at;
        at = next;
    }
    t->bucket[elder] = stay;
    t->bucket[young] = move;
}

uint32_t slot_take(struct table *t)
{
    struct head *head = t->head;
    uint32_t slot = head->free;
    if (slot_is_there(t, slot)) {
        keep(t, &more_at(t, slot)->next);
        PUT(t, head->free, more_at(t, slot)->next);
    } else {
        slot = head->fresh;
        if (slot > t->slots) { /* cannot be: room was reserved */
            t->broken = 1;
            return NONE;
        }
        PUT(t, head->fresh, slot + 1);
    }
    PUT(t, head->used, head->used + 1);
    return slot;
}

/* As they hang together: however long, three numbers change. */
uint32_t slot_release_chain(struct table *t, uint32_t first)
{
    uint32_t count = 0, last = NONE;
    for (uint32_t at = first; slot_is_there(t, at); at = more_at(t, at)->next) {
        last = at;
        if (++count > t->head->used) {
            t->broken = 1;
            return 0;
        }
    }
    if (count > 0) {
        PUT(t, more_at(t, last)->next, t->head->free);
        PUT(t, t->head->free, first);
        PUT(t, t->head->used, t->head->used - count);
    }
    return count;
}

uint32_t table_add(struct table *t, struct hash hash, struct hash owner_id, int64_t horizon_us)
{
    struct head *head = t->head;
    uint32_t owner = owner_for(t, owner_id, horizon_us);
    uint32_t slot = slot_take(t);
    if (slot == NONE)
        return NONE;
    struct slot *s = &t->slot[slot];
    uint32_t *bucket = &t->bucket[bucket_of(head, hash.half[0])];
    s->hash[0] = hash.half[0];
    s->hash[1] = hash.half[1];
    s->expires = 0;
    s->frees = NOT_BLOCKED;
    s->owner = (uint16_t)(owner << 4 | NO_STATE);
    s->chain = *bucket;
    PUT(t, *bucket, slot);
    PUT(t, head->keys, head->keys + 1);
    owner_gains(t, owner, 1, 1);
    if (t->journal == NULL && head->keys > head->buckets)
        split(t);
    return slot;
}

void table_forget(struct table *t, uint32_t slot)
{
    struct head *head = t->head;
    struct slot *s = &t->slot[slot];
    uint32_t *link = &t->bucket[bucket_of(head, s->hash[0])], steps = 0;
    while (*link != slot) {
        if (!slot_is_there(t, *link) || ++steps > t->slots) {
            t->broken = 1;
            return;
        }
        link = &t->slot[*link].chain;
    }
    PUT(t, *link, s->chain);
    uint32_t owner = s->owner >> 4;
    /* The key's own slot first: the rest hangs on it from then on. */
    PUT(t, more_at(t, slot)->next, more_of(s));
    uint32_t freed = slot_release_chain(t, slot);
    PUT(t, head->keys, head->keys - 1);
    owner_loses(t, owner, 1, freed);
}

void table_empty(struct table *t)
{
    struct head *head = t->head;
    uint32_t buckets = head->buckets, mask = head->mask;
    uint64_t evicted = head->evicted, recovered = head->recovered;
    t->broken = 0;
    if (t->journal == NULL) {
        buckets = 8;
        mask = 15;
    } else {
        /* Killed in the middle of this, more was changed than can be undone: the next one empties it again. */
        t->journal->count = MOST_NOTES + 1;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        /* Of a damaged table not even its size is believed. */
        buckets = t->most_keys;
        for (mask = 1; mask < buckets; mask = mask * 2 + 1)
            ;
    }
    memset(head, 0, sizeof *head);
    head->buckets = buckets;
    head->mask = mask;
    head->fresh = 1;
    head->due = NO_TIME;
    head->evicted = evicted;
    head->recovered = recovered;
    memset(t->bucket, 0, (size_t)buckets * sizeof t->bucket[0]);
}

int table_init_private(struct table *t, uint32_t most_keys)
{
    memset(t, 0, sizeof *t);
    t->most_keys = most_keys;
    t->most_used = UINT32_MAX;
    t->head = calloc(1, sizeof *t->head);
    t->bucket = calloc(16, sizeof t->bucket[0]);
    if (t->head == NULL || t->bucket == NULL)
        return -1;
    table_empty(t);
    return 0;
}

void table_free_private(struct table *t)
{
    free(t->head);
    free(t->bucket);
    free(t->slot);
    free(t->owner);
    memset(t, 0, sizeof *t);
}

/* The last key is gone: what a flood took is given back. */
void table_shrink(struct table *t)
{
    uint32_t *buckets = realloc(t->bucket, 16 * sizeof t->bucket[0]);
    if (buckets != NULL)
        t->bucket = buckets;
    free(t->slot);
    free(t->owner);
    t->slot = NULL;
    t->owner = NULL;
    t->slots = t->owners = 0;
    table_empty(t);
}

static void *grown(void *array, size_t count, size_t size)
{
    return count > SIZE_MAX / size ? NULL : realloc(array, count * size);
}

/* A little more than is needed now: memory that is not used is not resident. */
static int grow(struct table *t, uint32_t slots)
{
    struct head *head = t->head;
    uint64_t needed = (uint64_t)head->fresh + slots;
    if (needed > t->slots) {
        uint64_t wanted = needed + needed / 4 + 8;
        if (wanted >= UINT32_MAX)
            return -1;
        struct slot *more = grown(t->slot, wanted + 1, sizeof *more);
        if (more == NULL)
            return -1;
        t->slot = more;
        t->slots = (uint32_t)wanted;
    }
    /* A bucket array of a power of two, so that splitting one by one seldom moves it. */
    uint32_t room = head->mask + 1;
    if ((uint64_t)head->buckets + slots >= room) {
        uint64_t wanted = (uint64_t)room * 2 + slots;
        uint32_t *buckets = grown(t->bucket, wanted, sizeof *buckets);
        if (buckets == NULL)
            return -1;
        t->bucket = buckets;
    }
    if (head->owners + slots > t->owners && t->owners < MOST_OWNERS) {
        uint32_t wanted = t->owners * 2 + slots + 1;
        if (wanted > MOST_OWNERS)
            wanted = MOST_OWNERS;
        struct owner *owners = grown(t->owner, wanted, sizeof *owners);
        if (owners == NULL)
            return -1;
        t->owner = owners;
        t->owners = wanted;
    }
    return 0;
}

int table_reserve(struct table *t, uint32_t slots, int64_t now)
{
    if (t->journal == NULL)
        return grow(t, slots);
    uint32_t tries = 0;
    while (t->slots - t->head->used < slots && t->head->keys > 0 && !t->broken) {
        age_make_room(t, now, tries++ > 8 * LOOKS);
        commit(t);
    }
    if (t->broken) {
        table_empty(t);
        commit(t);
    }
    return t->slots - t->head->used < slots ? -1 : 0;
}
