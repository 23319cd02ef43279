/* What is forgotten, and in which order: the idle first, those that are nearest to being forgotten anyway; a blocked key only when its
 * owner has nothing else. The key that goes is one of the owner that takes up the most: a flood of keys under one rule does not push
 * out those of another. No timer, no scan: each visit looks at a few keys whose time has come.
 */
#include "table.h"

/* Spans of time in 16 bits, to one part in a thousand: 11 bits of what it is, 5 of how much. */
uint16_t span_from(uint32_t span)
{
    uint32_t power = 0;
    while (span >> power >= 2048)
        power++;
    return (uint16_t)(power * 1024 + (span >> power));
}

uint32_t span_to(uint16_t span)
{
    if (span < 2048)
        return span;
    uint32_t power = span / 1024u - 1;
    return power > 21 ? UINT32_MAX : (1024u + span % 1024u) << power;
}

/* --- rankings: two heaps over the owners, by when they are due and by how much they take up */

static uint32_t wheel_due(const struct wheel *wheel, uint16_t shift)
{
    if (wheel->bits == 0)
        return NO_TIME;
    uint64_t due = ((uint64_t)wheel->base + 1) << (shift & 31);
    return due >= NO_TIME ? NO_TIME - 1 : (uint32_t)due;
}

static uint64_t rank(struct table *t, enum ranking by, uint32_t owner)
{
    const struct owner *o = &t->owner[owner];
    if (by == CROWD) /* the fullest first; of those with as much, those that have idle keys */
        return UINT64_MAX - ((uint64_t)o->slots * 2 + (o->idle.bits != 0));
    uint32_t idle = wheel_due(&o->idle, o->shift), blocked = wheel_due(&o->blocked, o->shift);
    return idle < blocked ? idle : blocked;
}

static inline int owner_is_there(struct table *t, uint32_t owner)
{
    if (owner < t->owners && owner < t->head->owner_fresh)
        return 1;
    t->broken = 1;
    return 0;
}

static void stand_at(struct table *t, enum ranking by, uint32_t place, uint32_t owner)
{
    PUT(t, t->owner[place].ranked[by], (uint16_t)owner);
    PUT(t, t->owner[owner].place[by], (uint16_t)place);
}

static void rise_or_sink(struct table *t, enum ranking by, uint32_t owner)
{
    uint32_t place = t->owner[owner].place[by], count = t->head->owners;
    uint64_t own = rank(t, by, owner);
    if (place >= count || count > t->owners) {
        t->broken = 1;
        return;
    }
    while (place > 0) {
        uint32_t above = (place - 1) / 2, other = t->owner[above].ranked[by];
        if (!owner_is_there(t, other) || rank(t, by, other) <= own)
            break;
        stand_at(t, by, place, other);
        place = above;
    }
    for (;;) {
        uint32_t below = place * 2 + 1, other, second;
        if (below >= count || !owner_is_there(t, other = t->owner[below].ranked[by]))
            break;
        if (below + 1 < count && owner_is_there(t, second = t->owner[below + 1].ranked[by]) &&
            rank(t, by, second) < rank(t, by, other)) {
            below++;
            other = second;
        }
        if (rank(t, by, other) >= own)
            break;
        stand_at(t, by, place, other);
        place = below;
    }
    if (t->owner[place].ranked[by] != owner || t->owner[owner].place[by] != place)
        stand_at(t, by, place, owner);
}

static void rank_anew(struct table *t, uint32_t owner)
{
    rise_or_sink(t, DUE, owner);
    rise_or_sink(t, CROWD, owner);
}

/* --- owners */

static uint16_t shift_for(int64_t horizon_us)
{
    uint16_t shift = 2; /* at least four seconds */
    uint64_t span = coarse(horizon_us + GRACE_US) + 1u;
    while (shift < 31 && span >> shift > WHEEL - 4)
        shift++;
    return shift;
}

uint32_t owner_for(struct table *t, struct hash id, int64_t horizon_us)
{
    struct head *head = t->head;
    uint16_t *chain = &head->owner_chain[id.half[0] % OWNER_CHAINS];
    uint32_t found = *chain, steps = 0;
    while (found != NONE && steps++ < MOST_OWNERS && owner_is_there(t, found - 1)) {
        const struct owner *o = &t->owner[found - 1];
        if (o->id[0] == id.half[0] && o->id[1] == id.half[1])
            return found - 1;
        found = o->chain;
    }
    uint32_t owner;
    if (head->owner_free != NONE && owner_is_there(t, head->owner_free - 1)) {
        owner = head->owner_free - 1;
        keep(t, &t->owner[owner].chain);
        PUT(t, head->owner_free, (uint32_t)t->owner[owner].chain);
    } else if (head->owner_fresh < t->owners) {
        owner = head->owner_fresh;
        PUT(t, head->owner_fresh, owner + 1);
    } else {
        /* More rules than can be told apart: they are counted with another one, when it comes to making room. */
        return (uint32_t)(id.half[1] % t->owners);
    }
    struct owner *o = &t->owner[owner];
    uint32_t place = head->owners;
    if (place >= t->owners) {
        t->broken = 1;
        return 0;
    }
    PUT(t, o->keys, 0);
    PUT(t, o->slots, 0);
    PUT(t, o->idle.bits, 0);
    PUT(t, o->idle.base, 0);
    PUT(t, o->blocked.bits, 0);
    PUT(t, o->blocked.base, 0);
    PUT(t, o->id[0], id.half[0]);
    PUT(t, o->id[1], id.half[1]);
    PUT(t, o->shift, shift_for(horizon_us));
    PUT(t, o->chain, *chain);
    PUT(t, *chain, (uint16_t)(owner + 1));
    PUT(t, head->owners, place + 1);
    stand_at(t, DUE, place, owner);
    stand_at(t, CROWD, place, owner);
    rank_anew(t, owner);
    return owner;
}

static void owner_leave(struct table *t, uint32_t owner)
{
    struct head *head = t->head;
    struct owner *o = &t->owner[owner];
    uint16_t *chain = &head->owner_chain[o->id[0] % OWNER_CHAINS];
    uint32_t steps = 0;
    if (head->owners == 0) {
        t->broken = 1;
        return;
    }
    while (*chain != owner + 1) {
        if (*chain == NONE || !owner_is_there(t, *chain - 1u) || ++steps > MOST_OWNERS) {
            t->broken = 1;
            return;
        }
        chain = &t->owner[*chain - 1].chain;
    }
    PUT(t, *chain, o->chain);
    uint32_t end = head->owners - 1;
    for (int by = DUE; by <= CROWD; by++) {
        uint32_t place = o->place[by], last = t->owner[end].ranked[by];
        if (place > end || !owner_is_there(t, last)) {
            t->broken = 1;
            return;
        }
        stand_at(t, (enum ranking)by, place, last);
    }
    PUT(t, head->owners, end);
    for (int by = DUE; by <= CROWD; by++) {
        uint32_t place = o->place[by];
        if (place < end)
            rise_or_sink(t, (enum ranking)by, t->owner[place].ranked[by]);
    }
    PUT(t, o->chain, (uint16_t)head->owner_free);
    PUT(t, head->owner_free, owner + 1);
}

void owner_gains(struct table *t, uint32_t owner, uint32_t keys, uint32_t slots)
{
    if (!owner_is_there(t, owner))
        return;
    struct owner *o = &t->owner[owner];
    if (keys)
        PUT(t, o->keys, o->keys + keys);
    PUT(t, o->slots, o->slots + slots);
    rise_or_sink(t, CROWD, owner);
}

void owner_loses(struct table *t, uint32_t owner, uint32_t keys, uint32_t slots)
{
    if (!owner_is_there(t, owner))
        return;
    struct owner *o = &t->owner[owner];
    if (keys)
        PUT(t, o->keys, o->keys - keys);
    PUT(t, o->slots, o->slots - slots);
    if (o->keys == 0)
        owner_leave(t, owner);
    else
        rank_anew(t, owner);
}

/* --- wheels */

static inline uint32_t turned(uint32_t bits, uint32_t by)
{
    by &= 31;
    return by ? bits >> by | bits << (32 - by) : bits;
}

static void wheel_put(struct table *t, struct wheel *wheel, uint32_t when, uint32_t slot)
{
    struct slot *s = &t->slot[slot];
    if (wheel->bits == 0) {
        PUT(t, wheel->base, when);
    } else if (when < wheel->base) {
        uint32_t top = wheel->base + 31 - (uint32_t)__builtin_clz(turned(wheel->bits, wheel->base));
        if (top - when < WHEEL)
            PUT(t, wheel->base, when);
        else
            when = wheel->base; /* looked at later than it could be */
    } else if (when - wheel->base >= WHEEL) {
        when = wheel->base + WHEEL - 1; /* looked at earlier, and put off again */
    }
    uint32_t queue = when % WHEEL, tail = wheel->tail[queue];
    if (wheel->bits >> queue & 1 && slot_is_there(t, tail)) {
        PUT(t, s->next, t->slot[tail].next);
        PUT(t, t->slot[tail].next, slot);
    } else {
        PUT(t, s->next, slot);
        PUT(t, wheel->bits, wheel->bits | UINT32_C(1) << queue);
    }
    PUT(t, wheel->tail[queue], slot);
}

/* From the earliest queue, who has stood there for longest. */
static uint32_t wheel_pop(struct table *t, struct wheel *wheel)
{
    uint32_t queue = wheel->base % WHEEL, tail = wheel->tail[queue];
    uint32_t first = slot_is_there(t, tail) ? t->slot[tail].next : NONE;
    if (!slot_is_there(t, first) || !(wheel->bits >> queue & 1)) {
        t->broken = 1;
        return NONE;
    }
    if (first != tail) {
        PUT(t, t->slot[tail].next, t->slot[first].next);
        return first;
    }
    uint32_t bits = wheel->bits & ~(UINT32_C(1) << queue);
    PUT(t, wheel->bits, bits);
    if (bits)
        PUT(t, wheel->base, wheel->base + (uint32_t)__builtin_ctz(turned(bits, wheel->base)));
    return first;
}

void age_put(struct table *t, uint32_t slot)
{
    uint32_t owner = t->slot[slot].owner >> 4;
    if (!owner_is_there(t, owner))
        return;
    struct owner *o = &t->owner[owner];
    wheel_put(t, &o->idle, t->slot[slot].expires >> (o->shift & 31), slot);
    rank_anew(t, owner);
}

/* --- looking after it */

static int is_overfull(struct table *t)
{
    return t->head->keys > t->most_keys || t->head->used > t->most_used;
}

void age_plan(struct table *t)
{
    struct head *head = t->head;
    uint32_t due = NO_TIME;
    if (is_overfull(t))
        due = 0;
    else if (head->owners > 0 && owner_is_there(t, t->owner[0].ranked[DUE]))
        due = (uint32_t)rank(t, DUE, t->owner[0].ranked[DUE]);
    if (due != head->due)
        PUT(t, head->due, due);
}

void age_make_room(struct table *t, int64_t now, int at_any_price)
{
    uint32_t owner = t->head->owners > 0 ? t->owner[0].ranked[CROWD] : MOST_OWNERS;
    if (!owner_is_there(t, owner)) {
        t->broken = 1;
        return;
    }
    struct owner *o = &t->owner[owner];
    if (o->idle.bits != 0) {
        uint32_t queue = o->idle.base, slot = wheel_pop(t, &o->idle);
        if (slot == NONE)
            return;
        struct slot *s = &t->slot[slot];
        uint32_t frees = 0;
        if (s->frees != NOT_BLOCKED && span_to(s->frees) <= s->expires)
            frees = s->expires - span_to(s->frees);
        if (at_any_price)
            ;
        else if (s->expires >> (o->shift & 31) > queue) {
            wheel_put(t, &o->idle, s->expires >> (o->shift & 31), slot);
            rank_anew(t, owner);
            return;
        } else if (frees > coarse(now)) {
            wheel_put(t, &o->blocked, frees >> (o->shift & 31), slot);
            rank_anew(t, owner);
            return;
        }
        PUT(t, t->head->evicted, t->head->evicted + 1);
        table_forget(t, slot);
        return;
    }
    uint32_t slot = o->blocked.bits != 0 ? wheel_pop(t, &o->blocked) : NONE;
    if (slot == NONE) {
        t->broken = 1;
        return;
    }
    PUT(t, t->head->evicted, t->head->evicted + 1);
    table_forget(t, slot);
}

static void revisit(struct table *t, uint32_t owner, int64_t now)
{
    struct owner *o = &t->owner[owner];
    int is_blocked = wheel_due(&o->blocked, o->shift) <= coarse(now);
    uint32_t slot = wheel_pop(t, is_blocked ? &o->blocked : &o->idle);
    if (slot == NONE)
        return;
    if (t->slot[slot].expires > coarse(now)) {
        wheel_put(t, &o->idle, t->slot[slot].expires >> (o->shift & 31), slot);
        rank_anew(t, owner);
    } else {
        table_forget(t, slot);
    }
}

void age_tend(struct table *t, int64_t now)
{
    for (int looks = 0; looks < LOOKS && t->head->owners > 0 && !t->broken; looks++) {
        uint32_t owner = t->owner[0].ranked[DUE];
        if (!owner_is_there(t, owner))
            break;
        if (rank(t, DUE, owner) <= coarse(now))
            revisit(t, owner, now);
        else if (is_overfull(t))
            age_make_room(t, now, 0);
        else
            break;
        commit(t);
    }
    if (t->journal == NULL && t->head->keys == 0 && t->slots > 1024)
        table_shrink(t);
    age_plan(t);
    commit(t);
}
