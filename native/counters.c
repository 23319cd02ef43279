/* Counters: what a store in Python holds on to. */
#include "python.h"

static PyMethodDef take_def = {
    "take", (PyCFunction)(void (*)(void))take, METH_FASTCALL | METH_KEYWORDS,
    "take($self, key, cost=1)\n--\n\nCharge the key; the Decision is true if it may pass."};
static PyMethodDef decide_def = {
    "decide", (PyCFunction)(void (*)(void))decide, METH_FASTCALL | METH_KEYWORDS,
    "decide($self, charges, now=None)\n--\n\nCharge all, or none if one is denied."};

struct binding *binding_new(struct counters *c, PyObject *terms, PyObject *other)
{
    PyTypeObject *type = c->kit->binding;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct binding *self = (struct binding *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->counters = (struct counters *)ref((PyObject *)c);
    self->terms = (struct terms *)Py_XNewRef(terms);
    self->other = other == Py_None ? NULL : ref(other);
    return self;
}

static int binding_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct binding *self = (struct binding *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self->counters);
    Py_VISIT((PyObject *)self->terms);
    Py_VISIT(self->other);
    return 0;
}

static int binding_clear(PyObject *object)
{
    struct binding *self = (struct binding *)object;
    Py_CLEAR(self->other);
    return 0;
}

static void binding_dealloc(PyObject *object)
{
    struct binding *self = (struct binding *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->counters);
    Py_CLEAR(self->terms);
    Py_CLEAR(self->other);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyType_Slot binding_slots[] = {
    {Py_tp_traverse, binding_traverse},
    {Py_tp_clear, binding_clear},
    {Py_tp_dealloc, binding_dealloc},
    {0, NULL},
};

PyType_Spec binding_spec = {"diana._native.Binding", sizeof(struct binding), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
                                Py_TPFLAGS_DISALLOW_INSTANTIATION,
                            binding_slots};

static int wrong_zone(const char *wrong)
{
    if (wrong == NULL)
        return 0;
    PyErr_SetString(PyExc_ValueError, wrong);
    return -1;
}

/* Counters(max_keys), or Counters(0, body, secret, epoch_offset_us) over shared memory. */
static PyObject *counters_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"max_keys", "body", "secret", "epoch_offset_us", NULL};
    unsigned long long max_keys;
    PyObject *body = Py_None;
    const char *secret = NULL;
    Py_ssize_t length = 0;
    long long offset = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "K|Oy#L", known, &max_keys, &body, &secret,
                                     &length, &offset))
        return NULL;
    if (body != Py_None && length != 16) {
        PyErr_SetString(PyExc_ValueError, "a secret is 16 bytes");
        return NULL;
    }
    struct kit *kit = PyType_GetModuleState(type);
    if (kit == NULL)
        return NULL;
    if (kit->decision == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "call setup first");
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct counters *self = (struct counters *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->kit = kit;
    const char *wrong;
    if (body == Py_None) {
        uint32_t most = max_keys < UINT32_MAX / 2 ? (uint32_t)max_keys : UINT32_MAX / 2;
        memcpy(self->zone.secret, kit->secret, sizeof kit->secret);
        self->zone.epoch_offset_us = kit->epoch_offset_us;
        wrong = zone_open_private(&self->zone, most);
    } else {
        if (PyObject_GetBuffer(body, &self->body, PyBUF_WRITABLE) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        self->has_body = 1;
        memcpy(self->zone.secret, secret, 16);
        self->zone.epoch_offset_us = offset;
        wrong = zone_open_shared(&self->zone, self->body.buf, (uint64_t)self->body.len);
    }
    if (wrong_zone(wrong) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void counters_dealloc(PyObject *object)
{
    struct counters *self = (struct counters *)object;
    PyTypeObject *type = Py_TYPE(object);
    zone_close(&self->zone);
    if (self->has_body)
        PyBuffer_Release(&self->body);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static Py_ssize_t counters_length(PyObject *object)
{
    struct counters *self = (struct counters *)object;
    uint64_t keys = 0;
    for (uint32_t shard = 0; shard < self->zone.shards; shard++)
        keys += self->zone.table[shard].head->keys;
    return (Py_ssize_t)keys;
}

static PyObject *counters_bind(PyObject *object, PyObject *args)
{
    struct counters *self = (struct counters *)object;
    PyObject *terms, *clock;
    if (!PyArg_ParseTuple(args, "O!O", self->kit->terms, &terms, &clock))
        return NULL;
    enum kind kind = ((struct terms *)terms)->limit.kind;
    if (kind == NUMBERS || (kind == LOG && !self->zone.is_shared)) {
        PyErr_SetString(PyExc_ValueError, "no kernel decides for it here");
        return NULL;
    }
    struct binding *binding = binding_new(self, terms, clock);
    if (binding == NULL)
        return NULL;
    PyObject *function = PyCFunction_NewEx(&take_def, (PyObject *)binding, NULL);
    Py_DECREF(binding);
    return function;
}

static PyObject *counters_decider(PyObject *object, PyObject *otherwise)
{
    struct binding *binding = binding_new((struct counters *)object, NULL, otherwise);
    if (binding == NULL)
        return NULL;
    PyObject *function = PyCFunction_NewEx(&decide_def, (PyObject *)binding, NULL);
    Py_DECREF(binding);
    return function;
}

/* The slot of a key, its shard locked; -1 with an exception. */
static int find_locked(struct counters *c, struct terms *terms, PyObject *key, uint32_t *shard,
                       uint32_t *slot)
{
    struct hash hash;
    if (terms_hash(c, terms, key, &hash) < 0)
        return -1;
    *shard = shard_of(&c->zone, hash);
    if (!lock_all(c, UINT64_C(1) << *shard))
        return -1;
    *slot = table_find(&c->zone.table[*shard], hash);
    return 0;
}

static PyObject *counters_refund(PyObject *object, PyObject *args)
{
    struct counters *self = (struct counters *)object;
    PyObject *terms, *key, *price, *charged, *moment;
    int64_t cost, at, now;
    uint32_t shard, slot;
    if (!PyArg_ParseTuple(args, "O!OOOO", self->kit->terms, &terms, &key, &price, &charged, &moment))
        return NULL;
    if (cost_from(self->kit, price, &cost) < 0 || moment_from(charged, &at) < 0)
        return NULL;
    if (moment == Py_None)
        now = counters_now(self);
    else if (moment_from(moment, &now) < 0)
        return NULL;
    if (find_locked(self, (struct terms *)terms, key, &shard, &slot) < 0)
        return NULL;
    if (slot != NONE) {
        struct table *t = &self->zone.table[shard];
        state_refund(t, &((struct terms *)terms)->limit, slot, cost, at, now);
        commit(t);
    }
    release_all(self, UINT64_C(1) << shard);
    return ref(Py_None);
}

static PyObject *counters_reset(PyObject *object, PyObject *args)
{
    struct counters *self = (struct counters *)object;
    PyObject *terms, *key;
    uint32_t shard, slot;
    if (!PyArg_ParseTuple(args, "O!O", self->kit->terms, &terms, &key))
        return NULL;
    if (find_locked(self, (struct terms *)terms, key, &shard, &slot) < 0)
        return NULL;
    if (slot != NONE) {
        state_reset(&self->zone.table[shard], slot);
        commit(&self->zone.table[shard]);
    }
    release_all(self, UINT64_C(1) << shard);
    return ref(Py_None);
}

static PyObject *counters_clear(PyObject *object, PyObject *unused)
{
    struct counters *self = (struct counters *)object;
    (void)unused;
    for (uint32_t shard = 0; shard < self->zone.shards; shard++) {
        if (!lock_all(self, UINT64_C(1) << shard))
            return NULL;
        struct table *t = &self->zone.table[shard];
        if (t->journal == NULL)
            table_shrink(t);
        else
            table_empty(t);
        commit(t);
        release_all(self, UINT64_C(1) << shard);
    }
    return ref(Py_None);
}

/* Slots there are, slots in use, keys, evictions, locks taken over from the dead, shards. */
static PyObject *counters_statistics(PyObject *object, PyObject *unused)
{
    struct counters *self = (struct counters *)object;
    unsigned long long slots = 0, used = 0, keys = 0, evicted = 0, recovered = 0;
    (void)unused;
    for (uint32_t shard = 0; shard < self->zone.shards; shard++) {
        const struct table *t = &self->zone.table[shard];
        slots += t->slots;
        used += t->head->used;
        keys += t->head->keys;
        evicted += t->head->evicted;
        recovered += t->head->recovered;
    }
    return Py_BuildValue("{sKsKsKsKsKsI}", "slots", slots, "used", used, "keys", keys, "evictions",
                         evicted, "recovered", recovered, "shards", self->zone.shards);
}

/* By the hash of each limit's id: how many keys it has. */
static PyObject *counters_owners(PyObject *object, PyObject *unused)
{
    struct counters *self = (struct counters *)object;
    PyObject *found = PyList_New(0);
    (void)unused;
    for (uint32_t shard = 0; found != NULL && shard < self->zone.shards; shard++) {
        if (!lock_all(self, UINT64_C(1) << shard)) {
            Py_CLEAR(found);
            break;
        }
        const struct table *t = &self->zone.table[shard];
        for (uint32_t place = 0; found != NULL && place < t->head->owners; place++) {
            const struct owner *o = &t->owner[t->owner[place].ranked[DUE] % t->owners];
            PyObject *pair = Py_BuildValue("y#I", (const char *)o->id, (Py_ssize_t)sizeof o->id, o->keys);
            if (pair == NULL || PyList_Append(found, pair) < 0)
                Py_CLEAR(found);
            Py_XDECREF(pair);
        }
        release_all(self, UINT64_C(1) << shard);
    }
    return found;
}

/* The hash under which a limit stands in owners(). */
static PyObject *counters_owner_of(PyObject *object, PyObject *terms)
{
    struct counters *self = (struct counters *)object;
    struct hash hash;
    if (!Py_IS_TYPE(terms, self->kit->terms)) {
        PyErr_SetString(PyExc_TypeError, "owner_of takes Terms");
        return NULL;
    }
    PyObject *empty = PyUnicode_FromString("");
    if (empty == NULL)
        return NULL;
    int wrong = terms_hash(self, (struct terms *)terms, empty, &hash);
    Py_DECREF(empty);
    if (wrong < 0)
        return NULL;
    const struct hash *owner = &((struct terms *)terms)->owner;
    return PyBytes_FromStringAndSize((const char *)owner->half, sizeof owner->half);
}

static PyMethodDef counters_methods[] = {
    {"bind", counters_bind, METH_VARARGS, "bind(terms, clock): a take() for one limit."},
    {"decider", counters_decider, METH_O, "decider(otherwise): a decide(charges, now=None)."},
    {"decide", (PyCFunction)(void (*)(void))counters_decide, METH_FASTCALL | METH_KEYWORDS,
     "decide(charges, now=None, denied=False): None if a charge has no kernel."},
    {"peek", (PyCFunction)(void (*)(void))counters_peek, METH_FASTCALL,
     "peek(charges, now=None): None if a charge has no kernel."},
    {"refund", counters_refund, METH_VARARGS, "refund(terms, key, cost, at, now)"},
    {"reset", counters_reset, METH_VARARGS, "reset(terms, key)"},
    {"read", (PyCFunction)(void (*)(void))counters_read, METH_FASTCALL,
     "read(terms, key): the state as the algorithm in Python knows it, or None."},
    {"swap", (PyCFunction)(void (*)(void))counters_swap, METH_FASTCALL,
     "swap(charges, swaps, now): charge and write together, or None if a state is another by now."},
    {"clear", counters_clear, METH_NOARGS, "Forget every key."},
    {"statistics", counters_statistics, METH_NOARGS, "How full it is."},
    {"owners", counters_owners, METH_NOARGS, "By the hash of each limit's id: its keys."},
    {"owner_of", counters_owner_of, METH_O, "owner_of(terms): its hash in owners()."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot counters_slots[] = {
    {Py_tp_doc, "Counters in private memory, or in a zone that processes share."},
    {Py_tp_new, counters_new},
    {Py_tp_dealloc, counters_dealloc},
    {Py_tp_methods, counters_methods},
    {Py_sq_length, counters_length},
    {0, NULL},
};

PyType_Spec counters_spec = {"diana._native.Counters", sizeof(struct counters), 0,
                             Py_TPFLAGS_DEFAULT, counters_slots};
