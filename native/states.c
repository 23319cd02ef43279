/* From slots to states and back: which kernel is asked, and where the numbers of a long state are. */
#include "table.h"

static int is_of(struct table *t, uint32_t slot, enum kind kind)
{
    return slot != NONE && kind_of(&t->slot[slot]) == kind;
}

static uint32_t slots_for(int64_t numbers)
{
    return (uint32_t)((numbers + NUMBERS_PER_SLOT - 1) / NUMBERS_PER_SLOT);
}

/* Whether so many were there. */
static int gather(struct table *t, uint32_t first, int64_t *numbers, int64_t count)
{
    int64_t place = 0;
    while (place < count && slot_is_there(t, first)) {
        const struct more *more = more_at(t, first);
        for (int i = 0; i < NUMBERS_PER_SLOT && place < count; i++)
            numbers[place++] = more->of.number[i];
        first = more->next;
    }
    return place == count;
}

/* Only what is different is touched. */
static void scatter(struct table *t, uint32_t first, const int64_t *numbers, int64_t count)
{
    int64_t place = 0;
    while (place < count && slot_is_there(t, first)) {
        struct more *more = more_at(t, first);
        for (int i = 0; i < NUMBERS_PER_SLOT && place < count; i++, place++)
            if (more->of.number[i] != numbers[place])
                PUT(t, more->of.number[i], numbers[place]);
        first = more->next;
    }
}

/* A state of this kind with this many more numbers, whatever was there before. */
static void become(struct table *t, uint32_t slot, enum kind kind, int64_t numbers)
{
    struct slot *s = &t->slot[slot];
    uint32_t owner = s->owner >> 4, freed = slot_release_chain(t, more_of(s)), first = NONE;
    if (freed > 0)
        owner_loses(t, owner, 0, freed);
    uint32_t needed = slots_for(numbers);
    for (uint32_t i = 0; i < needed; i++) {
        uint32_t more = slot_take(t);
        if (more == NONE)
            return;
        memset(more_at(t, more), 0, sizeof(struct more));
        more_at(t, more)->next = first;
        first = more;
    }
    keep(t, &s->owner);
    PUT(t, s->word[2], (int64_t)first);
    s->owner = (uint16_t)(owner << 4 | kind);
    if (needed > 0)
        owner_gains(t, owner, 0, needed);
}

static void sliding_read(struct table *t, const int64_t *params, uint32_t slot,
                         struct sliding *state, int *is_new)
{
    *is_new = 1;
    if (is_of(t, slot, SLIDING)) {
        const struct slot *s = &t->slot[slot];
        state->last = s->word[0];
        state->total = s->word[1];
        *is_new = !gather(t, more_of(s), state->ring, params[2] + 1);
    }
}

static void sliding_store(struct table *t, const int64_t *params, uint32_t slot,
                          const struct sliding *state, int is_new)
{
    struct slot *s = &t->slot[slot];
    if (is_new)
        become(t, slot, SLIDING, params[2] + 1);
    PUT(t, s->word[0], state->last);
    PUT(t, s->word[1], state->total);
    scatter(t, more_of(s), state->ring, params[2] + 1);
}

/* A bucket with a ledger keeps level and stamp in its own slot, and behind it its scale, how many spans, and those. */
static void ledger_read(struct table *t, uint32_t slot, struct words *words, struct ledger *ledger)
{
    const struct slot *s = &t->slot[slot];
    int64_t numbers[2 + 2 * MOST_SPANS] = {0};
    words->at[0] = s->word[0];
    words->at[1] = s->word[1];
    gather(t, more_of(s), numbers, 2);
    words->at[2] = numbers[0];
    ledger->spans = numbers[1];
    int64_t count = 2 + 2 * ledger->spans;
    if (ledger->spans < 0 || ledger->spans > MOST_SPANS || !gather(t, more_of(s), numbers, count)) {
        ledger->spans = 0;
        return;
    }
    for (int64_t i = 0; i < 2 * ledger->spans; i++) {
        ledger->number[i] = numbers[i + 2];
        if (!is_whole(numbers[i + 2]) || (i % 2 == 1 && numbers[i + 2] < 0))
            ledger->spans = 0;
    }
}

/* Room for its spans was reserved, or they stand there already. */
static void bucket_store(struct table *t, uint32_t slot, const struct words *words,
                         const struct ledger *ledger)
{
    struct slot *s = &t->slot[slot];
    if (ledger->spans == 0) {
        if (!is_of(t, slot, BUCKET))
            become(t, slot, BUCKET, 0);
        for (int i = 0; i < 3; i++)
            if (s->word[i] != words->at[i])
                PUT(t, s->word[i], words->at[i]);
        return;
    }
    int64_t count = 2 + 2 * ledger->spans, numbers[2 + 2 * MOST_SPANS], found[2] = {0, 0};
    numbers[0] = words->at[2];
    numbers[1] = ledger->spans;
    memcpy(numbers + 2, ledger->number, (size_t)(2 * ledger->spans) * sizeof numbers[0]);
    if (is_of(t, slot, LEDGER))
        gather(t, more_of(s), found, 2);
    if (found[1] != ledger->spans)
        become(t, slot, LEDGER, count);
    PUT(t, s->word[0], words->at[0]);
    PUT(t, s->word[1], words->at[1]);
    scatter(t, more_of(s), numbers, count);
}

void state_weigh(struct table *t, enum kind kind, const int64_t *params, uint32_t slot,
                 int64_t cost, int64_t now, struct finding *found)
{
    const struct words *words = NULL;
    struct words copy;
    found->slot = slot;
    switch (kind) {
    case BUCKET:
        found->ledger.spans = 0;
        if (is_of(t, slot, BUCKET)) {
            memcpy(copy.at, t->slot[slot].word, sizeof copy.at);
            words = &copy;
        } else if (is_of(t, slot, LEDGER)) {
            ledger_read(t, slot, &copy, &found->ledger);
            words = &copy;
        }
        found->writes = bucket_decide(params, words, &found->ledger, cost, now, &found->after,
                                      &found->outcome);
        break;
    case WINDOW:
        if (is_of(t, slot, WINDOW)) {
            memcpy(copy.at, t->slot[slot].word, sizeof copy.at);
            words = &copy;
        }
        found->writes = window_decide(params, words, cost, now, &found->after, &found->outcome);
        break;
    case SLIDING: {
        struct sliding state;
        int is_new;
        sliding_read(t, params, slot, &state, &is_new);
        found->writes = sliding_decide(params, &state, is_new, cost, now, &found->outcome);
        break;
    }
    default:
        log_weigh(t, params, slot, cost, now, found);
    }
    if (cost == 0)
        found->writes = 0;
}

uint32_t state_room(const struct limit *limit)
{
    if (limit->kind == SLIDING)
        return 1 + slots_for(limit->params[2] + 1);
    return limit->kind == LOG ? 2 : 1;
}

void state_write(struct table *t, const struct limit *limit, int64_t cost, int64_t now,
                 const struct finding *found)
{
    uint32_t slot = found->slot;
    struct slot *s = &t->slot[slot];
    if (limit->kind == SLIDING) {
        struct sliding state;
        struct outcome again;
        int is_new;
        sliding_read(t, limit->params, slot, &state, &is_new);
        sliding_decide(limit->params, &state, is_new, cost, now, &again);
        sliding_store(t, limit->params, slot, &state, is_new);
    } else if (limit->kind == LOG) {
        if (!is_of(t, slot, LOG)) {
            become(t, slot, LOG, 0);
            PUT(t, s->word[0], 0);
            PUT(t, s->word[1], 0);
        }
        log_write(t, limit->params, slot, cost, now, found->outcome.allowed);
    } else if (limit->kind == BUCKET) {
        bucket_store(t, slot, &found->after, &found->ledger);
    } else {
        if (!is_of(t, slot, limit->kind))
            become(t, slot, limit->kind, 0);
        for (int i = 0; i < 3; i++)
            if (s->word[i] != found->after.at[i])
                PUT(t, s->word[i], found->after.at[i]);
    }
}

void slot_ages(struct table *t, uint32_t slot, int64_t expires_us, int64_t frees_us)
{
    struct slot *s = &t->slot[slot];
    uint32_t expires = coarse(expires_us + GRACE_US) + 1;
    uint16_t frees = NOT_BLOCKED;
    if (s->expires > expires)
        expires = s->expires; /* a slower limit has asked for that */
    if (frees_us >= 0) {
        uint32_t until = coarse(frees_us) + 1;
        frees = span_from(until < expires ? expires - until : 0);
    }
    if (s->expires != expires || s->frees != frees) {
        keep(t, &s->expires); /* both stand in one word */
        s->expires = expires;
        s->frees = frees;
    }
}

/* The state is as good as none, to any limit. */
static void ages_anew(struct table *t, uint32_t slot)
{
    keep(t, &t->slot[slot].expires);
    t->slot[slot].expires = 0;
    t->slot[slot].frees = NOT_BLOCKED;
}

void state_settle(struct table *t, const struct limit *limit, uint32_t slot, int64_t cost,
                  int64_t now, const struct outcome *said)
{
    const int64_t *params = limit->has_longest ? limit->longest : limit->params;
    struct finding rest;
    int64_t reset, frees = -1;
    if (said != NULL && !limit->has_longest) {
        reset = said->reset_us;
    } else {
        state_weigh(t, limit->kind, params, slot, 0, now, &rest);
        reset = rest.outcome.reset_us;
    }
    if (said != NULL && !limit->has_longest && said->remaining > 0)
        ;
    else if (said != NULL && !limit->has_longest && cost == 1 && !said->allowed) {
        frees = now + said->retry_us;
    } else {
        state_weigh(t, limit->kind, params, slot, 1, now, &rest);
        if (!rest.outcome.allowed && rest.outcome.retry_us > 0)
            frees = now + rest.outcome.retry_us;
    }
    if (reset == 0)
        ages_anew(t, slot);
    slot_ages(t, slot, now + reset, frees);
}

/* Where the slot is once there is room for a ledger, for which others may have to go; NONE if it went itself. */
static uint32_t room_for_ledger(struct table *t, uint32_t slot, int64_t now)
{
    struct hash hash = {{t->slot[slot].hash[0], t->slot[slot].hash[1]}};
    int fits = table_reserve(t, slots_for(2 + 2 * MOST_SPANS), now) == 0;
    return fits ? table_find(t, hash) : NONE;
}

static void refund_bucket(struct table *t, const struct limit *limit, uint32_t slot, int64_t cost,
                          int64_t at, int64_t now)
{
    struct words words;
    struct ledger ledger = {0};
    if (is_of(t, slot, LEDGER))
        ledger_read(t, slot, &words, &ledger);
    else
        memcpy(words.at, t->slot[slot].word, sizeof words.at);
    bucket_refund(limit->params, &words, &ledger, cost, at, now);
    bucket_store(t, slot, &words, &ledger);
}

void state_refund(struct table *t, const struct limit *limit, uint32_t slot, int64_t cost,
                  int64_t at, int64_t now)
{
    if (limit->kind == BUCKET && (is_of(t, slot, BUCKET) || is_of(t, slot, LEDGER))) {
        slot = room_for_ledger(t, slot, now);
        if (slot == NONE)
            return;
        refund_bucket(t, limit, slot, cost, at, now);
        state_settle(t, limit, slot, 1, now, NULL);
        return;
    }
    if (!is_of(t, slot, limit->kind))
        return;
    struct slot *s = &t->slot[slot];
    if (limit->kind == SLIDING) {
        struct sliding state;
        int is_new;
        sliding_read(t, limit->params, slot, &state, &is_new);
        if (is_new)
            return;
        sliding_refund(limit->params, &state, cost, at, now);
        sliding_store(t, limit->params, slot, &state, 0);
    } else if (limit->kind == LOG) {
        log_refund(t, limit->params, slot, cost, at, now);
    } else {
        struct words words;
        memcpy(words.at, s->word, sizeof words.at);
        window_refund(limit->params, &words, cost, at, now);
        for (int i = 0; i < 3; i++)
            if (s->word[i] != words.at[i])
                PUT(t, s->word[i], words.at[i]);
    }
    state_settle(t, limit, slot, 1, now, NULL);
}

void state_reset(struct table *t, uint32_t slot)
{
    become(t, slot, NO_STATE, 0);
    ages_anew(t, slot);
}

int64_t numbers_read(struct table *t, uint32_t slot, int64_t *numbers, int64_t room)
{
    if (!is_of(t, slot, NUMBERS))
        return -1;
    const struct slot *s = &t->slot[slot];
    int64_t count = s->word[0];
    if (count < 0 || count > room || !gather(t, more_of(s), numbers, count))
        return -1;
    return count;
}

void numbers_write(struct table *t, uint32_t slot, const int64_t *numbers, int64_t count,
                   int64_t expires_us, int64_t frees_us)
{
    struct slot *s = &t->slot[slot];
    if (!is_of(t, slot, NUMBERS) || s->word[0] != count)
        become(t, slot, NUMBERS, count);
    PUT(t, s->word[0], count);
    scatter(t, more_of(s), numbers, count);
    if (count == 0)
        ages_anew(t, slot);
    slot_ages(t, slot, expires_us, frees_us);
}
