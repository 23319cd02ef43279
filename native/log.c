/* A sliding log: entries of (moment, amount), four to a slot, from the oldest on. What a decision costs does not grow with the log: it
 * appends at one end and drops at the other.
 *
 * Of a key's slot: word[0] is the newest moment, word[1] the amount of all entries, word[2] the first slot of entries and, in its
 * upper half, the last.
 */
#include "table.h"

struct reading {
    struct table *t;
    uint32_t slot;  /* of entries */
    uint32_t place; /* in it */
    uint32_t slots; /* read so far */
};

static int is_log(struct table *t, uint32_t slot)
{
    return slot != NONE && kind_of(&t->slot[slot]) == LOG && t->slot[slot].word[1] > 0 &&
           t->slot[slot].word[1] < WHOLE && is_whole(t->slot[slot].word[0]);
}

static uint32_t last_of(const struct slot *s) { return (uint32_t)((uint64_t)s->word[2] >> 32); }

static void begin(struct reading *r, struct table *t, uint32_t slot)
{
    r->t = t;
    r->slot = more_of(&t->slot[slot]);
    r->place = slot_is_there(t, r->slot) ? more_at(t, r->slot)->first : 0;
    r->slots = 0;
}

/* The entry at which the reading stands; whether there is one. */
static int entry(struct reading *r, int64_t *moment, int64_t *amount)
{
    while (slot_is_there(r->t, r->slot)) {
        const struct more *more = more_at(r->t, r->slot);
        if (r->place < more->end && r->place < ENTRIES_PER_SLOT) {
            *moment = more->of.log.moment[r->place];
            *amount = more->of.log.amount[r->place];
            if (is_whole(*moment))
                return 1;
            r->t->broken = 1;
            return 0;
        }
        r->slot = more->next;
        r->place = slot_is_there(r->t, r->slot) ? more_at(r->t, r->slot)->first : 0;
        if (++r->slots > r->t->slots) {
            r->t->broken = 1;
            return 0;
        }
    }
    return 0;
}

/* The moment of the entry with which at least so much has expired, from where the reading stands. */
static int64_t leaves(struct reading *r, int64_t excess, int moved, int64_t now)
{
    int64_t moment = 0, amount = 0;
    while (entry(r, &moment, &amount) && excess > amount) {
        excess -= amount;
        r->place++;
    }
    return moved ? least(moment, now) : moment;
}

void log_weigh(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t now,
               struct finding *found)
{
    int64_t limit = params[0], unit = params[1], before = 0, newest = now, moment = 0, amount = 0;
    int moved = 0, any = is_log(t, slot);
    struct reading r = {t, NONE, 0, 0};
    if (any) {
        before = t->slot[slot].word[1];
        newest = t->slot[slot].word[0];
        if (newest - now > SECOND_US) {
            moved = 1;
            newest = now; /* those that are later count as of now */
        }
        begin(&r, t, slot);
        if (newest <= now - unit) {
            any = 0;
            before = 0;
        } else {
            while (entry(&r, &moment, &amount) && moment <= now - unit) {
                before -= amount;
                r.place++;
            }
        }
    }
    struct outcome *o = &found->outcome;
    int64_t filled = before + cost;
    o->delay_us = 0;
    if (filled <= limit || cost == 0) {
        o->allowed = 1;
        o->remaining = most(0, limit - filled);
        if (cost > 0)
            newest = any ? most(now, newest) : now;
        o->reset_us = any || cost > 0 ? newest + unit - now : 0;
        o->retry_us = any ? leaves(&r, most(0, before - limit) + 1, moved, now) + unit - now
                          : o->reset_us;
        found->writes = 1;
        return;
    }
    o->allowed = 0;
    o->remaining = most(0, limit - before);
    o->reset_us = any ? newest + unit - now : 0;
    o->retry_us = NEVER;
    if (cost <= limit)
        o->retry_us = leaves(&r, filled - limit, moved, now) + unit - now;
    found->writes = moved;
}

static void ends(struct table *t, struct slot *s, uint32_t first, uint32_t last)
{
    PUT(t, s->word[2], (int64_t)((uint64_t)last << 32 | first));
}

/* The clock was set back: what is later than now is as of now, in one entry. */
static void clamp(struct table *t, uint32_t slot, int64_t now)
{
    struct slot *s = &t->slot[slot];
    struct reading r;
    int64_t moment = 0, amount = 0, earlier = 0;
    begin(&r, t, slot);
    while (entry(&r, &moment, &amount) && moment < now) {
        earlier += amount;
        r.place++;
    }
    if (!slot_is_there(t, r.slot) || r.place >= ENTRIES_PER_SLOT)
        return;
    struct more *more = more_at(t, r.slot);
    PUT(t, more->of.log.moment[r.place], now);
    PUT(t, more->of.log.amount[r.place], (uint32_t)(s->word[1] - earlier));
    PUT(t, more->end, (uint16_t)(r.place + 1));
    uint32_t freed = slot_release_chain(t, more->next);
    PUT(t, more->next, NONE);
    PUT(t, s->word[0], now);
    ends(t, s, more_of(s), r.slot);
    if (freed > 0)
        owner_loses(t, s->owner >> 4, 0, freed);
}

/* Without the entries before this place of this slot. */
static void drop_before(struct table *t, uint32_t slot, uint32_t to, uint32_t place, int64_t dropped)
{
    struct slot *s = &t->slot[slot];
    uint32_t first = more_of(s), freed = 0, before = NONE;
    for (uint32_t at = first; at != to && slot_is_there(t, at); at = more_at(t, at)->next)
        before = at;
    uint32_t last = to == NONE ? NONE : last_of(s);
    if (before != NONE) {
        PUT(t, more_at(t, before)->next, NONE);
        freed = slot_release_chain(t, first);
    }
    if (to != NONE)
        PUT(t, more_at(t, to)->first, (uint16_t)place);
    ends(t, s, to, last);
    PUT(t, s->word[1], s->word[1] - dropped);
    if (freed > 0)
        owner_loses(t, s->owner >> 4, 0, freed);
}

static void drop_expired(struct table *t, uint32_t slot, int64_t until)
{
    struct reading r;
    int64_t moment = 0, amount = 0, dropped = 0;
    begin(&r, t, slot);
    uint32_t from = r.slot, place = r.place;
    int is_left;
    while ((is_left = entry(&r, &moment, &amount)) && moment <= until) {
        dropped += amount;
        r.place++;
    }
    if (!is_left)
        drop_before(t, slot, NONE, 0, t->slot[slot].word[1]);
    else if (r.slot != from || r.place != place)
        drop_before(t, slot, r.slot, r.place, dropped);
}

static void append(struct table *t, uint32_t slot, int64_t moment, int64_t cost)
{
    struct slot *s = &t->slot[slot];
    uint32_t last = last_of(s);
    PUT(t, s->word[1], s->word[1] + cost);
    if (s->word[1] > cost && slot_is_there(t, last)) {
        struct more *more = more_at(t, last);
        uint32_t end = more->end;
        if (moment == s->word[0] && end > more->first && end <= ENTRIES_PER_SLOT) {
            PUT(t, more->of.log.amount[end - 1], more->of.log.amount[end - 1] + (uint32_t)cost);
            return;
        }
        PUT(t, s->word[0], moment);
        if (end < ENTRIES_PER_SLOT) {
            PUT(t, more->of.log.moment[end], moment);
            PUT(t, more->of.log.amount[end], (uint32_t)cost);
            PUT(t, more->end, (uint16_t)(end + 1));
            return;
        }
    } else {
        last = NONE;
        PUT(t, s->word[0], moment);
    }
    uint32_t young = slot_take(t);
    if (young == NONE)
        return;
    struct more *more = more_at(t, young);
    memset(more, 0, sizeof *more);
    more->end = 1;
    more->of.log.moment[0] = moment;
    more->of.log.amount[0] = (uint32_t)cost;
    if (last != NONE)
        PUT(t, more_at(t, last)->next, young);
    ends(t, s, last == NONE ? young : more_of(s), young);
    owner_gains(t, s->owner >> 4, 0, 1);
}

/* An entry taken out: those behind it in its slot move up. */
static void strike(struct table *t, uint32_t slot, int64_t at, int64_t cost)
{
    struct slot *s = &t->slot[slot];
    struct reading r;
    int64_t moment = 0, amount = 0, before = 0;
    uint32_t previous = NONE;
    begin(&r, t, slot);
    while (entry(&r, &moment, &amount) && moment < at) {
        before = moment;
        r.place++;
    }
    if (!slot_is_there(t, r.slot) || r.place >= ENTRIES_PER_SLOT || moment != at)
        return;
    struct more *more = more_at(t, r.slot);
    int64_t back = least(cost, amount);
    PUT(t, s->word[1], s->word[1] - back);
    if (back < amount) {
        PUT(t, more->of.log.amount[r.place], (uint32_t)(amount - back));
        return;
    }
    if (at == s->word[0])
        PUT(t, s->word[0], before);
    for (uint32_t i = r.place; i + 1 < more->end && i + 1 < ENTRIES_PER_SLOT; i++) {
        PUT(t, more->of.log.moment[i], more->of.log.moment[i + 1]);
        PUT(t, more->of.log.amount[i], more->of.log.amount[i + 1]);
    }
    PUT(t, more->end, (uint16_t)(more->end - 1));
    if (more->end > more->first)
        return;
    /* Nothing is left in its slot. */
    uint32_t first = more_of(s), last = last_of(s);
    for (uint32_t one = first; one != r.slot && slot_is_there(t, one); one = more_at(t, one)->next)
        previous = one;
    if (previous != NONE)
        PUT(t, more_at(t, previous)->next, more->next);
    ends(t, s, previous == NONE ? more->next : first, last == r.slot ? previous : last);
    PUT(t, more->next, NONE);
    slot_release_chain(t, r.slot);
    owner_loses(t, s->owner >> 4, 0, 1);
}

void log_write(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t now,
               int allowed)
{
    struct slot *s = &t->slot[slot];
    if (!is_log(t, slot)) { /* empty, or damaged */
        uint32_t freed = slot_release_chain(t, more_of(s));
        PUT(t, s->word[1], 0);
        ends(t, s, NONE, NONE);
        if (freed > 0)
            owner_loses(t, s->owner >> 4, 0, freed);
    } else if (s->word[0] - now > SECOND_US) {
        clamp(t, slot, now);
    }
    if (!allowed)
        return;
    if (is_log(t, slot))
        drop_expired(t, slot, now - params[1]);
    append(t, slot, s->word[1] > 0 ? most(now, s->word[0]) : now, cost);
}

void log_refund(struct table *t, const int64_t *params, uint32_t slot, int64_t cost, int64_t at,
                int64_t now)
{
    if (!is_log(t, slot))
        return;
    if (t->slot[slot].word[0] - now > SECOND_US)
        clamp(t, slot, now);
    drop_expired(t, slot, now - params[1]);
    if (is_log(t, slot))
        strike(t, slot, at, cost);
}
