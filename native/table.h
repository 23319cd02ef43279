/* A table of counters: slots of 56 bytes, found by hash, forgotten in order of age.
 *
 *   buckets   | . | 3 | . | 1 | ...        the first slot of each chain; 0 is none
 *   slots     | 1: hash, state, chain... | 2: ... | 3: ... |
 *   owners    | rule A: keys, two wheels | rule B | ...
 *
 * A slot is a key's, or holds more of a state that needs more room than a key's slot has, or is free. Each key stands in one of its
 * owner's (its rule's) two wheels: `idle` by when its state will be as good as none, `blocked` by when it will pass again. A wheel is a
 * ring of 32 queues; how long each is depends on how long the rule remembers.
 *
 * In private memory a table grows, and no lock is needed: Python's own is held. In shared memory it is one shard of a zone, of fixed size,
 * under a lock that survives its holder; what is changed is noted in a journal first, and who finds the lock of the dead undoes it.
 */
#ifndef DIANA_TABLE_H
#define DIANA_TABLE_H

#include "diana.h"

#define NONE 0u
#define WHEEL 32
#define MOST_OWNERS 4096
#define OWNER_CHAINS 128
#define MOST_NOTES 1536
#define NOT_BLOCKED 0xffff
#define NUMBERS_PER_SLOT 6
#define ENTRIES_PER_SLOT 4
#define NO_TIME UINT32_MAX
/* Ages are coarse: in 2**20 us, about a second. */
#define COARSE_BITS 20
/* A key in steady use is not forgotten and met again every second. */
#define GRACE_US (INT64_C(1) << 25)
#define LOOKS 8

struct slot {
    uint64_t hash[2];
    int64_t word[3];
    uint32_t chain;   /* the next of its bucket */
    uint32_t next;    /* in its queue */
    uint32_t expires; /* when its state is as good as none */
    uint16_t frees;   /* how long before that it will pass again: see span_from */
    uint16_t owner;   /* and the kind of its state, in the low four bits */
};

/* A slot that holds more of a state: numbers, or entries of a log. */
struct more {
    uint32_t next; /* of its state; or the next free slot */
    uint16_t first, end; /* of a log's entries */
    union {
        int64_t number[NUMBERS_PER_SLOT];
        struct {
            int64_t moment[ENTRIES_PER_SLOT];
            uint32_t amount[ENTRIES_PER_SLOT];
        } log;
    } of;
};

struct wheel {
    uint32_t base; /* the earliest queue that holds anything */
    uint32_t bits; /* which do */
    uint32_t tail[WHEEL];
};

enum ranking { DUE = 0, CROWD = 1 };

struct owner {
    uint64_t id[2];
    uint32_t keys, slots;
    uint16_t chain;    /* the next of its chain, or the next free; one more than its number */
    uint16_t shift;    /* a queue is 2**shift coarse units long */
    uint16_t place[2]; /* in the rankings */
    uint16_t ranked[2]; /* who stands at this place of the rankings */
    uint16_t spare[2];
    struct wheel idle, blocked;
};

struct head {
    uint32_t keys, used; /* slots in use, of keys and of more */
    uint32_t fresh;      /* slots from here on were never used */
    uint32_t free;
    uint32_t buckets, mask; /* linear hashing: one more bucket for each more key */
    uint32_t owners, owner_free, owner_fresh;
    uint32_t due; /* when to look after what is old; 0: at once */
    uint64_t evicted, recovered;
    uint16_t owner_chain[OWNER_CHAINS];
};

struct note {
    uint64_t where, was;
};

struct journal {
    uint64_t count;
    struct note note[MOST_NOTES];
};

/* What one process knows of a table. */
struct table {
    struct head *head;
    uint32_t *bucket;
    struct slot *slot; /* slot[1] is the first */
    struct owner *owner;
    struct journal *journal; /* NULL in private memory */
    uint32_t slots, owners;  /* how many there is room for */
    uint32_t most_keys, most_used;
    int broken; /* what was read cannot be: it is emptied afterwards */
};

/* A limit as numbers, under the id of its rule. */
struct limit {
    enum kind kind;
    int64_t params[MOST_PARAMS];
    int has_longest;
    int64_t longest[MOST_PARAMS]; /* by which its keys are forgotten */
    int64_t horizon_us;           /* for how long it remembers, at most */
};

/* --- journal.c */
void note(struct table *t, const void *where);
void journal_undo(struct table *t);
static inline void keep(struct table *t, const void *where)
{
    if (t->journal != NULL)
        note(t, where);
}
static inline void commit(struct table *t)
{
    if (t->journal != NULL) {
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        t->journal->count = 0;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
    }
}
#define PUT(t, place, value) (keep((t), &(place)), (void)((place) = (value)))

/* --- table.c */
int table_init_private(struct table *t, uint32_t most_keys);
void table_free_private(struct table *t);
void table_empty(struct table *t);
void table_shrink(struct table *t);
/* Room for so many more slots; -1 if there is no memory. */
int table_reserve(struct table *t, uint32_t slots, int64_t now);
uint32_t table_find(struct table *t, struct hash hash);
/* A new key's slot, linked under its hash and owner; room was reserved. */
uint32_t table_add(struct table *t, struct hash hash, struct hash owner_id, int64_t horizon_us);
void table_forget(struct table *t, uint32_t slot);
uint32_t slot_take(struct table *t);
/* How many. */
uint32_t slot_release_chain(struct table *t, uint32_t first);
static inline struct more *more_at(struct table *t, uint32_t slot)
{
    return (struct more *)&t->slot[slot];
}
static inline int slot_is_there(struct table *t, uint32_t slot)
{
    if (slot != NONE && slot < t->head->fresh && slot <= t->slots)
        return 1;
    if (slot != NONE)
        t->broken = 1;
    return 0;
}

/* --- ageing.c */
static inline uint32_t coarse(int64_t us)
{
    us >>= COARSE_BITS;
    return us < 0 ? 0 : us >= NO_TIME ? NO_TIME - 1 : (uint32_t)us;
}
uint32_t owner_for(struct table *t, struct hash id, int64_t horizon_us);
void owner_gains(struct table *t, uint32_t owner, uint32_t keys, uint32_t slots);
void owner_loses(struct table *t, uint32_t owner, uint32_t keys, uint32_t slots);
void age_put(struct table *t, uint32_t slot);
void age_tend(struct table *t, int64_t now);
/* One step towards a free slot. */
void age_make_room(struct table *t, int64_t now, int at_any_price);
void age_plan(struct table *t);
uint16_t span_from(uint32_t coarse_span);
uint32_t span_to(uint16_t span);

/* --- states.c */
struct finding {
    uint32_t slot; /* NONE: never seen */
    int writes;
    struct words after;
    struct ledger ledger; /* of a bucket */
    struct outcome outcome;
};
/* What a charge would come to; nothing is changed. */
void state_weigh(struct table *t, enum kind kind, const int64_t *params, uint32_t slot,
                 int64_t cost, int64_t now, struct finding *found);
/* Slots that writing may need. */
uint32_t state_room(const struct limit *limit);
/* Make it so. found->slot must be there. */
void state_write(struct table *t, const struct limit *limit, int64_t cost, int64_t now,
                 const struct finding *found);
void state_refund(struct table *t, const struct limit *limit, uint32_t slot, int64_t cost,
                  int64_t at, int64_t now);
void state_reset(struct table *t, uint32_t slot);
/* Note when it may be forgotten, and until when it is blocked; `said` is the answer to a charge, if there was one. */
void state_settle(struct table *t, const struct limit *limit, uint32_t slot, int64_t cost,
                  int64_t now, const struct outcome *said);
/* States of algorithms that have no kernel here: so many numbers, or -1 if there are none. */
int64_t numbers_read(struct table *t, uint32_t slot, int64_t *numbers, int64_t room);
void numbers_write(struct table *t, uint32_t slot, const int64_t *numbers, int64_t count,
                   int64_t expires_us, int64_t frees_us);
void slot_ages(struct table *t, uint32_t slot, int64_t expires_us, int64_t frees_us);

/* --- log.c */
void log_weigh(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t now,
               struct finding *found);
void log_write(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t now,
               int allowed);
void log_refund(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t at,
                int64_t now);

static inline enum kind kind_of(const struct slot *s) { return (enum kind)(s->owner & 15); }

/* Where the rest of a state begins, or NONE. */
static inline uint32_t more_of(const struct slot *s)
{
    enum kind kind = kind_of(s);
    if (kind == SLIDING || kind == NUMBERS || kind == LEDGER)
        return (uint32_t)s->word[2];
    return kind == LOG ? (uint32_t)(s->word[2] & UINT32_MAX) : NONE;
}

#endif
