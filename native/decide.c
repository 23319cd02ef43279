/* Charging: all or nothing, in one call. First everything that may fail in Python, then the locks and the numbers, then the answers. */
#include "python.h"

#define FEW 16

int lock_all(struct counters *c, uint64_t shards)
{
    struct zone *z = &c->zone;
    if (!z->is_shared)
        return 1;
    /* Always in this order: nobody waits for who waits for them. */
    for (uint32_t shard = 0; shard < z->shards; shard++) {
        if (!(shards >> shard & 1) || shard_try(z, shard))
            continue;
        /* Who waits holds nothing. Another thread of this process may keep Python's own lock for seconds, and a signal's handler may
         * count too: all other processes would wait for that. So what is free is not kept either, but tried again. */
        int is_free;
        release_all(c, shards & ((UINT64_C(1) << shard) - 1));
        Py_BEGIN_ALLOW_THREADS
        is_free = shard_wait(z, shard, 100);
        if (is_free)
            shard_release(z, shard);
        Py_END_ALLOW_THREADS
        if (!is_free && PyErr_CheckSignals() < 0)
            return 0;
        shard = UINT32_MAX; /* from the first on */
    }
    return 1;
}

void release_all(struct counters *c, uint64_t shards)
{
    struct zone *z = &c->zone;
    if (!z->is_shared) {
        if (z->table->broken)
            table_empty(z->table);
        return;
    }
    for (uint32_t shard = 0; shard < z->shards; shard++)
        if (shards >> shard & 1)
            shard_release(z, shard);
}

/* Charge it; a denied one is written only if it had to be stamped anew. */
static inline void write_one(struct table *t, struct charge *charge, int64_t now)
{
    const struct limit *limit = &charge->terms->limit;
    struct finding *found = &charge->found;
    int is_new = 0;
    if (found->writes && found->slot == NONE) {
        found->slot = table_find(t, charge->hash); /* twice in one call? */
        if (found->slot == NONE) {
            found->slot = table_add(t, charge->hash, charge->terms->owner, limit->horizon_us);
            is_new = 1;
        }
    }
    if (found->slot == NONE)
        return;
    if (found->writes)
        state_write(t, limit, charge->cost, now, found);
    if (charge->cost > 0)
        state_settle(t, limit, found->slot, charge->cost, now, &found->outcome);
    if (is_new) {
        age_put(t, found->slot);
        age_plan(t);
    }
    commit(t);
}

static inline void tend(struct table *t, int64_t now)
{
    if (coarse(now) >= t->head->due)
        age_tend(t, now);
}

static inline void weigh_one(struct table *t, struct charge *charge, int64_t now)
{
    const struct limit *limit = &charge->terms->limit;
    uint32_t slot = table_find(t, charge->hash);
    state_weigh(t, limit->kind, limit->params, slot, charge->cost, now, &charge->found);
}

/* Before anything is looked at: what makes room may forget a key. */
static int reserve_all(struct counters *c, struct charge *charges, Py_ssize_t count,
                       const struct swaps *swaps, int64_t now)
{
    uint32_t room[MOST_SHARDS] = {0};
    for (Py_ssize_t i = 0; i < count; i++)
        room[charges[i].shard] += state_room(&charges[i].terms->limit);
    for (Py_ssize_t i = 0; swaps != NULL && i < swaps->count; i++)
        room[swaps->one[i].shard] += 2 + MOST_NUMBERS / NUMBERS_PER_SLOT;
    for (uint32_t shard = 0; shard < c->zone.shards; shard++)
        if (room[shard] > 0 && table_reserve(&c->zone.table[shard], room[shard], now) < 0)
            return -1;
    return 0;
}

/* 0: done; 1: a state to be swapped is another by now; -1: an exception. */
static int charge_all(struct counters *c, struct charge *charges, Py_ssize_t count, int64_t now,
                      int denied_elsewhere, int writes, const struct swaps *swaps)
{
    uint64_t shards = 0;
    struct table *tables = c->zone.table;
    Py_ssize_t others = swaps == NULL ? 0 : swaps->count;
    for (Py_ssize_t i = 0; i < count; i++)
        shards |= UINT64_C(1) << charges[i].shard;
    for (Py_ssize_t i = 0; i < others; i++)
        shards |= UINT64_C(1) << swaps->one[i].shard;
    if (!lock_all(c, shards))
        return -1;
    if (writes && reserve_all(c, charges, count, swaps, now) < 0) {
        release_all(c, shards);
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < others; i++) {
        if (!swap_is_current(&tables[swaps->one[i].shard], &swaps->one[i])) {
            release_all(c, shards);
            return 1;
        }
    }
    int allowed = !denied_elsewhere;
    for (Py_ssize_t i = 0; i < count; i++) {
        weigh_one(&tables[charges[i].shard], &charges[i], now);
        allowed &= charges[i].found.outcome.allowed;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        struct charge *one = &charges[i];
        struct table *t = &tables[one->shard];
        if (!allowed && one->found.outcome.allowed) {
            /* What it has without the charge. */
            const struct limit *limit = &one->terms->limit;
            state_weigh(t, limit->kind, limit->params, one->found.slot, 0, now, &one->found);
        } else if (writes) {
            write_one(t, one, now);
        }
    }
    for (Py_ssize_t i = 0; allowed && i < others; i++)
        swap_write(&tables[swaps->one[i].shard], &swaps->one[i]);
    if (writes)
        for (Py_ssize_t i = 0; i < count; i++)
            tend(&tables[charges[i].shard], now);
    release_all(c, shards);
    return 0;
}

/* The same for one alone, which is most of them. */
static int charge_one(struct counters *c, struct charge *charge, int64_t now)
{
    const struct limit *limit = &charge->terms->limit;
    struct table *t = &c->zone.table[charge->shard];
    uint64_t shard = UINT64_C(1) << charge->shard;
    if (c->zone.is_shared && !lock_all(c, shard))
        return -1;
    uint32_t slot = table_find(t, charge->hash);
    if (slot == NONE || limit->kind == SLIDING || limit->kind == LOG) {
        if (table_reserve(t, state_room(limit), now) < 0) {
            release_all(c, shard);
            PyErr_NoMemory();
            return -1;
        }
        slot = table_find(t, charge->hash); /* what makes room may forget a key */
    }
    state_weigh(t, limit->kind, limit->params, slot, charge->cost, now, &charge->found);
    write_one(t, charge, now);
    tend(t, now);
    release_all(c, shard);
    return 0;
}

static int arguments(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **known,
                     PyObject **found, Py_ssize_t most, const char *function)
{
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments (%zd given)", function,
                     most, count);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        found[i] = args[i];
    Py_ssize_t named = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        Py_ssize_t place = 0;
        while (place < most && PyUnicode_Compare(name, known[place]) != 0)
            place++;
        if (place == most || found[place] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         place == most ? "%s() got an unexpected keyword argument '%U'"
                                       : "%s() got multiple values for argument '%U'",
                         function, name);
            return -1;
        }
        found[place] = args[count + i];
    }
    if (found[0] == NULL) {
        PyErr_Format(PyExc_TypeError, "%s() missing 1 required positional argument: '%U'", function,
                     known[0]);
        return -1;
    }
    return 0;
}

PyObject *take(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct binding *binding = (struct binding *)self;
    struct counters *c = binding->counters;
    struct kit *kit = c->kit;
    struct charge charge;
    PyObject *given[2] = {NULL, NULL};
    if (count == 1 && names == NULL) {
        given[0] = args[0];
    } else {
        PyObject *known[2] = {kit->key, kit->cost};
        if (arguments(args, count, names, known, given, 2, "take") < 0)
            return NULL;
    }
    charge.terms = binding->terms;
    charge.key = given[0];
    charge.price = given[1] == NULL ? kit->one : given[1];
    if (cost_from(kit, charge.price, &charge.cost) < 0)
        return NULL;
    int64_t now;
    PyObject *at;
    if (binding->other == NULL) {
        now = counters_now(c);
        at = PyLong_FromLongLong(now);
    } else {
        at = PyObject_CallNoArgs(binding->other);
        if (at != NULL && moment_from(at, &now) < 0)
            Py_CLEAR(at);
    }
    if (at == NULL)
        return NULL;
    PyObject *decision = NULL;
    if (terms_hash(c, charge.terms, charge.key, &charge.hash) == 0) {
        charge.shard = shard_of(&c->zone, charge.hash);
        if (charge_one(c, &charge, now) == 0)
            decision = decision_from(kit, &charge.found.outcome, charge.terms->most, charge.key,
                                     charge.price, at);
    }
    Py_DECREF(at);
    return decision;
}

/* The answers; None if one of them has no kernel here, or a swap came too late; NULL if there is an exception. */
PyObject *decide_charges(struct counters *c, PyObject *asked, PyObject *moment, int denied_elsewhere,
                         int writes, const struct swaps *swaps)
{
    struct kit *kit = c->kit;
    struct charge few[FEW], *charges = few;
    PyObject *answers = NULL, *at = NULL, *list = PyList_Check(asked) ? ref(asked) : PySequence_List(asked);
    if (list == NULL)
        return NULL;
    Py_ssize_t count = PyList_Size(list), ready = 0;
    /* Tuples that hold terms and keys: alive until the answers are made, whatever happens to the list meanwhile. */
    PyObject *alive = PyList_GetSlice(list, 0, count);
    Py_DECREF(list);
    if (alive == NULL)
        return NULL;
    if (count > FEW) {
        charges = PyMem_Malloc((size_t)count * sizeof *charges);
        if (charges == NULL) {
            Py_DECREF(alive);
            return PyErr_NoMemory();
        }
    }
    for (; ready < count; ready++) {
        struct charge *one = &charges[ready];
        PyObject *tuple = PyList_GetItem(alive, ready), *meter = NULL;
        if (PyTuple_Check(tuple) && PyTuple_Size(tuple) == 3) {
            meter = PyTuple_GetItem(tuple, 0);
            one->key = PyTuple_GetItem(tuple, 1);
            one->price = PyTuple_GetItem(tuple, 2);
        } else {
            PyErr_SetString(PyExc_TypeError, "a charge is a tuple of meter, key and cost");
            goto end;
        }
        PyObject *terms = terms_of_meter(kit, meter);
        if (terms == NULL)
            goto end;
        if (terms == Py_None) {
            answers = terms;
            goto end;
        }
        one->terms = (struct terms *)terms; /* from here on ours to let go */
        enum kind kind = one->terms->limit.kind;
        if (kind == NUMBERS || (kind == LOG && !c->zone.is_shared)) {
            answers = ref(Py_None);
            ready++;
            goto end;
        }
        if (cost_from(kit, one->price, &one->cost) < 0 ||
            terms_hash(c, one->terms, one->key, &one->hash) < 0) {
            ready++;
            goto end;
        }
        one->shard = shard_of(&c->zone, one->hash);
    }
    int64_t now;
    if (moment == NULL || moment == Py_None) {
        now = counters_now(c);
        at = PyLong_FromLongLong(now);
    } else if (moment_from(moment, &now) == 0) {
        at = ref(moment);
    }
    if (at == NULL)
        goto end;
    int done = charge_all(c, charges, count, now, denied_elsewhere, writes, swaps);
    if (done != 0) {
        answers = done < 0 ? NULL : ref(Py_None);
        goto end;
    }
    answers = PyList_New(count);
    for (Py_ssize_t i = 0; answers != NULL && i < count; i++) {
        struct charge *one = &charges[i];
        PyObject *decision = decision_from(kit, &one->found.outcome, one->terms->most, one->key,
                                           one->price, at);
        if (decision == NULL || PyList_SetItem(answers, i, decision) < 0)
            Py_CLEAR(answers);
    }
end:
    while (ready-- > 0)
        Py_DECREF(charges[ready].terms);
    if (charges != few)
        PyMem_Free(charges);
    Py_XDECREF(at);
    Py_DECREF(alive);
    return answers;
}

/* decide(charges, now=None) of a store: here if all have a kernel, else the other way. */
PyObject *decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct binding *binding = (struct binding *)self;
    struct kit *kit = binding->counters->kit;
    PyObject *known[2] = {kit->charges, kit->now}, *given[2] = {NULL, NULL};
    if (arguments(args, count, names, known, given, 2, "decide") < 0)
        return NULL;
    PyObject *answers = decide_charges(binding->counters, given[0], given[1], 0, 1, NULL);
    if (answers == Py_None) {
        Py_DECREF(answers);
        return PyObject_CallFunctionObjArgs(binding->other, given[0],
                                            given[1] == NULL ? Py_None : given[1], NULL);
    }
    return answers;
}

PyObject *counters_decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct kit *kit = ((struct counters *)self)->kit;
    PyObject *known[3] = {kit->charges, kit->now, kit->denied}, *given[3] = {NULL, NULL, NULL};
    if (arguments(args, count, names, known, given, 3, "decide") < 0)
        return NULL;
    int denied = given[2] == NULL ? 0 : PyObject_IsTrue(given[2]);
    if (denied < 0)
        return NULL;
    return decide_charges((struct counters *)self, given[0], given[1], denied, 1, NULL);
}

PyObject *counters_peek(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct kit *kit = ((struct counters *)self)->kit;
    PyObject *known[2] = {kit->charges, kit->now}, *given[2] = {NULL, NULL};
    if (arguments(args, count, NULL, known, given, 2, "peek") < 0)
        return NULL;
    return decide_charges((struct counters *)self, given[0], given[1], 0, 0, NULL);
}
