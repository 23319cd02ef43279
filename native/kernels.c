/* The algorithms with a state of a few numbers. What they mean is told in src/diana/algorithms; here they are as in its Lua.
 *
 * Numbers may come out of a file that others have damaged, so those that a kernel could not calculate with are no state at all.
 */
#include "diana.h"

/* Towards minus infinity, as in Python; b > 0. */
static inline int64_t over(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return a % b < 0 ? quotient - 1 : quotient;
}

static inline int64_t over_up(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : 0; }

static inline int64_t modulo(int64_t a, int64_t b)
{
    int64_t rest = a % b;
    return rest < 0 ? rest + b : rest;
}

/* Into how many spans of the ledger the time is divided in which a full bucket runs empty. */
#define SPANS 4

struct bucket {
    int64_t capacity, free, per, leak, drain, tick, limit, ceiling;
};

/* Level and stamp as of now; whether it was stamped too far ahead. */
static inline int bucket_as_of(const struct bucket *p, const struct words *state, int64_t now,
                               int64_t *level, int64_t *stamp)
{
    *level = 0;
    *stamp = now;
    if (state == NULL)
        return 0;
    int64_t found = state->at[0], stamped = state->at[1], scale = state->at[2];
    if (found < 0 || found >= WHOLE || !is_whole(stamped) || scale < 1 || scale >= WHOLE)
        return 0;
    if (scale != p->per) {
        __int128 up = ((__int128)found * p->per + (scale - 1)) / scale;
        found = up > p->ceiling ? p->ceiling : (int64_t)up;
    }
    found = least(found, p->ceiling);
    if (stamped > now) {
        *level = found;
        if (stamped - now > SECOND_US)
            return 1;
        if (found > 0)
            *stamp = stamped;
        return 0;
    }
    int64_t ticks = now - stamped;
    if (p->tick != 1)
        ticks /= p->tick;
    if (ticks > p->drain)
        ticks = p->drain;
    found -= ticks * p->leak;
    if (found > 0) {
        *level = found;
        *stamp = stamped + ticks * p->tick;
    }
    return 0;
}

/* A ledger counts on only while there is a level of the same scale. */
static inline int ledger_counts(const struct bucket *p, const struct words *state, int64_t level,
                                int moved)
{
    return level > 0 && !moved && state->at[2] == p->per;
}

int bucket_decide(const int64_t *params, const struct words *state, struct ledger *ledger,
                  int64_t cost, int64_t now, struct words *after, struct outcome *o)
{
    const struct bucket *p = (const struct bucket *)params;
    int64_t level, stamp;
    int moved = bucket_as_of(p, state, now, &level, &stamp);
    int64_t ahead = stamp - now;
    after->at[1] = stamp;
    after->at[2] = p->per;
    if (ledger->spans > 0 && !ledger_counts(p, state, level, moved))
        ledger->spans = 0;
    /* Above the limit nothing is multiplied: it could leave 64 bits. */
    int64_t filled = cost <= p->limit ? level + cost * p->per : 0;
    if (cost == 0 || (cost <= p->limit && filled <= p->capacity)) {
        if (ledger->spans > 0) {
            int64_t *newest = &ledger->number[2 * ledger->spans - 2];
            if (now - newest[0] < p->drain * p->tick)
                newest[1] += cost * p->per;
            else
                ledger->spans = 0;
        }
        after->at[0] = filled;
        o->allowed = 1;
        o->remaining = filled < p->capacity ? (p->capacity - filled) / p->per : 0;
        o->retry_us = 0;
        o->reset_us = filled > 0 ? ahead + over_up(filled, p->leak) * p->tick : 0;
        o->delay_us = cost > 0 && level > p->free
                          ? ahead + over_up(level - p->free, p->leak) * p->tick
                          : 0;
        return 1;
    }
    after->at[0] = level;
    o->allowed = 0;
    o->remaining = level < p->capacity ? (p->capacity - level) / p->per : 0;
    o->retry_us =
        cost > p->limit ? NEVER : ahead + over_up(filled - p->capacity, p->leak) * p->tick;
    o->reset_us = level > 0 ? ahead + over_up(level, p->leak) * p->tick : 0;
    o->delay_us = 0;
    return moved;
}

static int64_t leaks_surely(const struct bucket *p, int64_t elapsed)
{
    int64_t ticks = over(elapsed, p->tick) - (p->tick > 1);
    return least(most(0, ticks), p->drain) * p->leak;
}

/* The level that what was poured from a span on can have left, at the most: as if all of each came at its end. */
static int64_t left_since(const struct bucket *p, const struct ledger *ledger, int64_t span,
                          int64_t last, int64_t now)
{
    int64_t left = 0, end = ledger->number[2 * span];
    for (; span < ledger->spans; span++) {
        int64_t next = last;
        if (span + 1 < ledger->spans)
            next = least(ledger->number[2 * span + 2], last);
        left = most(0, left - leaks_surely(p, next - end));
        left = least(p->ceiling, left + ledger->number[2 * span + 1]);
        end = next;
    }
    return most(0, left - leaks_surely(p, now - end));
}

void bucket_refund(const int64_t *params, struct words *state, struct ledger *ledger, int64_t cost,
                   int64_t at, int64_t now)
{
    const struct bucket *p = (const struct bucket *)params;
    int64_t level, as_of, leak = p->leak, tick = p->tick, drain_us = p->drain * p->tick;
    int moved = bucket_as_of(p, state, now, &level, &as_of);
    if (level == 0) {
        *state = (struct words){{0, now, p->per}};
        ledger->spans = 0;
        return;
    }
    if (now - at >= drain_us)
        return;
    int64_t stamp = least(state->at[1], as_of);
    int64_t last = stamp > now ? stamp : least(now, stamp + tick - 1);
    int64_t hidden = tick > 1 && now > at ? leak : 0;
    int64_t *number = ledger->number;
    cost = least(cost, p->limit) * p->per;
    if (!ledger_counts(p, state, level, moved))
        ledger->spans = 0;
    if (at == now && now < stamp)
        /* Charged just now, to the last span of a state that is stamped ahead. */
        at = ledger->spans ? most(stamp, number[2 * ledger->spans - 2]) : stamp;
    if (ledger->spans == 0) {
        ledger->spans = 1;
        number[0] = at;
        number[1] = level + over_up(now - at, tick) * leak;
    }
    if (at < number[0]) {
        /* Never that long, but in a damaged file. */
        number[1] += least(over_up(number[0] - at, tick), 2 * p->drain + 2 * SECOND_US) * leak;
        number[0] = at;
    }
    int64_t span = ledger->spans - 1;
    while (number[2 * span] > at)
        span--;
    number[2 * span + 1] = most(0, number[2 * span + 1] - cost);
    int64_t bound = least(level - cost + over_up(last - at, tick) * leak,
                          left_since(p, ledger, span, last, now));
    int64_t rest = least(level, most(0, most(bound + hidden, level - cost)));
    if (rest == 0) {
        *state = (struct words){{0, now, p->per}};
        ledger->spans = 0;
        return;
    }
    if (now - number[2 * ledger->spans - 2] >= over_up(p->drain, SPANS) * tick &&
        ledger->spans < MOST_SPANS) {
        number[2 * ledger->spans] = most(now, stamp) + 1;
        number[2 * ledger->spans + 1] = 0;
        ledger->spans++;
    }
    while (ledger->spans > 1 && now - number[2] >= drain_us) {
        int64_t poured = rest + over_up(now - number[2], tick) * leak;
        for (int64_t later = 2; later < ledger->spans; later++)
            poured -= number[2 * later + 1];
        memmove(number, number + 2, (size_t)(2 * ledger->spans - 2) * sizeof *number);
        ledger->spans--;
        number[1] = most(number[1], poured);
    }
    *state = (struct words){{rest + over(as_of - stamp, tick) * leak, stamp, p->per}};
}

struct window {
    int64_t limit, unit, at_epoch;
};

static inline int window_is_sound(const struct words *state)
{
    return is_whole(state->at[0]) && state->at[1] >= 0 && state->at[1] < WHOLE;
}

int window_decide(const int64_t *params, const struct words *state, int64_t cost, int64_t now,
                  struct words *after, struct outcome *o)
{
    const struct window *p = (const struct window *)params;
    int64_t start = p->at_epoch ? now - modulo(now, p->unit) : now, count = 0;
    int moved = 0;
    if (state != NULL && window_is_sound(state) && state->at[1] > 0 &&
        now - state->at[0] < p->unit) {
        count = state->at[1];
        if (state->at[0] - now > SECOND_US)
            moved = 1;
        else
            start = state->at[0];
    }
    int64_t reset = start + p->unit - now, filled = count + cost;
    after->at[0] = start;
    after->at[2] = 0;
    if (filled <= p->limit || cost == 0) {
        after->at[1] = filled;
        *o = (struct outcome){1, most(0, p->limit - filled), 0, filled > 0 ? reset : 0, 0};
        return 1;
    }
    after->at[1] = count;
    *o = (struct outcome){0, most(0, p->limit - count), cost > p->limit ? NEVER : reset,
                          count > 0 ? reset : 0, 0};
    return moved;
}

void window_refund(const int64_t *params, struct words *state, int64_t cost, int64_t at, int64_t now)
{
    const struct window *p = (const struct window *)params;
    if (!window_is_sound(state))
        return;
    if (state->at[0] <= at && most(at, now) - state->at[0] < p->unit)
        state->at[1] = most(0, state->at[1] - cost);
}

struct slices {
    int64_t limit, slice_us, slices;
};

static int sliding_is_sound(const struct sliding *state, int64_t places)
{
    int sound = is_whole(state->last) && state->total >= 0 && state->total < WHOLE;
    for (int64_t place = 0; place < places; place++)
        sound &= state->ring[place] >= 0 && state->ring[place] < WHOLE;
    return sound;
}

/* Everything gone that has left the window by now; whether it was stamped too far ahead. */
static int sliding_as_of(const struct slices *p, struct sliding *state, int is_new, int64_t now)
{
    int64_t places = p->slices + 1, current = over(now, p->slice_us);
    if (is_new || !sliding_is_sound(state, places)) {
        memset(state->ring, 0, (size_t)places * sizeof state->ring[0]);
        state->last = current;
        state->total = 0;
        return 0;
    }
    if (current > state->last) {
        int64_t end = least(current, state->last + places);
        for (int64_t passed = state->last + 1; passed <= end; passed++) {
            int64_t *count = &state->ring[modulo(passed, places)];
            state->total = most(0, state->total - *count);
            *count = 0;
        }
        state->last = current;
    } else if (state->total == 0) {
        state->last = current; /* as good as never seen, however far ahead it is stamped */
    } else if (state->last > current &&
               (__int128)state->last * p->slice_us - now > SECOND_US) {
        int64_t turn = modulo(state->last - current, places), turned[MOST_SLICES + 1];
        for (int64_t place = 0; place < places; place++)
            turned[place] = state->ring[(place + turn) % places];
        memcpy(state->ring, turned, (size_t)places * sizeof turned[0]);
        state->last = current;
        return 1;
    }
    return 0;
}

/* In how long at least so much has left the window. */
static int64_t sliding_leaves(const struct slices *p, const struct sliding *state, int64_t excess,
                              int64_t now)
{
    int64_t places = p->slices + 1, gone = 0, oldest = state->last - p->slices;
    int64_t place = modulo(oldest, places);
    while ((gone += state->ring[place]) < excess && oldest < state->last) {
        oldest++;
        if (++place == places)
            place = 0;
    }
    return (oldest + places) * p->slice_us - now;
}

int sliding_decide(const int64_t *params, struct sliding *state, int is_new, int64_t cost,
                   int64_t now, struct outcome *o)
{
    const struct slices *p = (const struct slices *)params;
    int moved = sliding_as_of(p, state, is_new, now);
    int64_t filled = state->total + cost;
    if (filled <= p->limit || cost == 0) {
        state->ring[modulo(state->last, p->slices + 1)] += cost;
        state->total = filled;
        int64_t more = 0, reset = 0;
        if (filled > 0) {
            more = sliding_leaves(p, state, most(0, filled - p->limit) + 1, now);
            reset = cost > 0 ? (state->last + p->slices + 1) * p->slice_us - now
                             : sliding_leaves(p, state, filled, now);
        }
        *o = (struct outcome){1, most(0, p->limit - filled), more, reset, 0};
        return 1;
    }
    int64_t retry = NEVER;
    if (cost <= p->limit)
        retry = sliding_leaves(p, state, filled - p->limit, now);
    int64_t reset = state->total > 0 ? sliding_leaves(p, state, state->total, now) : 0;
    *o = (struct outcome){0, most(0, p->limit - state->total), retry, reset, 0};
    return moved;
}

void sliding_refund(const int64_t *params, struct sliding *state, int64_t cost, int64_t at,
                    int64_t now)
{
    const struct slices *p = (const struct slices *)params;
    sliding_as_of(p, state, 0, now);
    int64_t charged = over(at, p->slice_us);
    if (state->last - p->slices <= charged && charged <= state->last) {
        int64_t *count = &state->ring[modulo(charged, p->slices + 1)];
        int64_t back = least(cost, *count);
        *count -= back;
        state->total = most(0, state->total - back);
    }
}
