/* Terms: a CounterSpec as a kernel takes it. Made once for a CounterSpec, by diana.stores.c_kernels. */
#include "python.h"
#include <structmember.h>

static int numbers_from(PyObject *tuple, int64_t *numbers)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0)
        return -1;
    if (count > MOST_PARAMS) {
        PyErr_SetString(PyExc_ValueError, "too many numbers");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
        if (numbers[i] < 0 || !is_whole(numbers[i])) {
            PyErr_SetString(PyExc_ValueError, "a number of a limit is below 0 or beyond 2**53");
            return -1;
        }
    }
    return (int)count;
}

/* What a kernel divides by is never 0, and its arrays are long enough. */
static int is_sound(enum kind kind, int64_t *params, int count)
{
    switch (kind) {
    case BUCKET:
        if (count == 7)
            params[7] = params[0];
        return (count == 7 || count == 8) && params[2] > 0 && params[3] > 0 && params[5] > 0;
    case WINDOW:
        return count == 3 && params[1] > 0;
    case SLIDING:
        return count == 3 && params[1] > 0 && params[2] >= 1 && params[2] <= MOST_SLICES;
    case LOG:
        return count == 2 && params[0] <= UINT32_MAX / 2;
    case NUMBERS:
        return count == 0;
    default:
        return 0;
    }
}

static PyObject *terms_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *known[] = {"kind", "id", "most", "params", "longest", "horizon_us",
                            "family", "longest_of", NULL};
    int kind;
    PyObject *id, *most, *params, *longest, *family, *longest_of;
    long long horizon;
    if (!PyArg_ParseTupleAndKeywords(args, names, "iUOO!OLOO", known, &kind, &id, &most,
                                     &PyTuple_Type, &params, &longest, &horizon, &family,
                                     &longest_of))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    struct terms *self = (struct terms *)alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->id = ref(id);
    self->most = ref(most);
    self->family = ref(family);
    self->longest_of = ref(longest_of);
    struct limit *limit = &self->limit;
    limit->kind = (enum kind)kind;
    limit->horizon_us = horizon < 0 ? 0 : horizon < WHOLE ? horizon : WHOLE - 1;
    int count = numbers_from(params, limit->params), sound;
    sound = count >= 0 && is_sound(limit->kind, limit->params, count);
    if (sound && longest != Py_None) {
        limit->has_longest = 1;
        count = numbers_from(longest, limit->longest);
        sound = count >= 0 && is_sound(limit->kind, limit->longest, count);
    }
    if (!sound) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "these are no numbers of a limit");
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int terms_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct terms *self = (struct terms *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->family);
    Py_VISIT(self->longest_of);
    return 0;
}

static int terms_clear(PyObject *object)
{
    struct terms *self = (struct terms *)object;
    Py_CLEAR(self->id);
    Py_CLEAR(self->most);
    Py_CLEAR(self->family);
    Py_CLEAR(self->longest_of);
    return 0;
}

static void terms_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    terms_clear(object);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMemberDef terms_members[] = {
    {"kind", T_INT, offsetof(struct terms, limit.kind), READONLY, "Which kernel."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot terms_slots[] = {
    {Py_tp_members, terms_members},
    {Py_tp_doc, "A CounterSpec, made ready for a kernel."},
    {Py_tp_new, terms_new},
    {Py_tp_traverse, terms_traverse},
    {Py_tp_clear, terms_clear},
    {Py_tp_dealloc, terms_dealloc},
    {0, NULL},
};

PyType_Spec terms_spec = {"diana._native.Terms", sizeof(struct terms), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, terms_slots};

/* Of a rule's tiers and overrides it is the longest that says when a key is forgotten, and another may have become it. */
static int is_fresh(struct kit *kit, struct terms *terms)
{
    if (terms->family == Py_None)
        return 1;
    PyObject *longest = PyObject_GetAttr(terms->family, kit->longest);
    if (longest == NULL)
        return -1;
    int same = longest == terms->longest_of;
    Py_DECREF(longest);
    return same;
}

PyObject *terms_of_meter(struct kit *kit, PyObject *meter)
{
    PyObject *terms = PyObject_GetAttr(meter, kit->compiled);
    if (terms == NULL)
        return NULL;
    if (Py_IS_TYPE(terms, kit->terms)) {
        int fresh = is_fresh(kit, (struct terms *)terms);
        if (fresh > 0)
            return terms;
        Py_DECREF(terms);
        if (fresh < 0)
            return NULL;
    } else if (terms != Py_None) { /* known to have no kernel */
        Py_DECREF(terms);
        return ref(Py_None);
    } else {
        Py_DECREF(terms);
    }
    terms = PyObject_CallFunctionObjArgs(kit->terms_of, meter, NULL);
    if (terms != NULL && terms != Py_None && !Py_IS_TYPE(terms, kit->terms)) {
        PyErr_SetString(PyExc_TypeError, "terms_of gives Terms or None");
        Py_CLEAR(terms);
    }
    return terms;
}

static int hash_id(struct counters *c, struct terms *terms)
{
    Py_ssize_t length;
    PyObject *bytes = PyUnicode_AsEncodedString(terms->id, "utf-8", "surrogatepass");
    char *text;
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &text, &length) < 0) {
        Py_XDECREF(bytes);
        return -1;
    }
    hash_begin(&terms->begun, c->zone.secret);
    terms->owner = hash_end(&terms->begun, (const uint8_t *)text, (size_t)length);
    Py_DECREF(bytes);
    hash_words(&terms->begun, (const uint8_t *)terms->owner.half, sizeof terms->owner.half);
    memcpy(terms->secret, c->zone.secret, sizeof terms->secret);
    terms->is_hashed = 1;
    return 0;
}

int terms_hash(struct counters *c, struct terms *terms, PyObject *key, struct hash *hash)
{
    if (!terms->is_hashed || memcmp(terms->secret, c->zone.secret, sizeof terms->secret) != 0)
        if (hash_id(c, terms) < 0)
            return -1;
    if (!Py_IS_TYPE(key, &PyUnicode_Type) && !PyUnicode_Check(key)) {
        PyObject *error = PyObject_CallFunctionObjArgs(c->kit->key_error, key, NULL);
        if (error != NULL) {
            PyErr_SetObject(c->kit->key_error, error);
            Py_DECREF(error);
        }
        return -1;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(key, &length);
    if (text != NULL) {
        *hash = hash_end(&terms->begun, (const uint8_t *)text, (size_t)length);
        return 0;
    }
    /* Half of a character that takes two: no text, but a key like any other. */
    PyErr_Clear();
    PyObject *bytes = PyUnicode_AsEncodedString(key, "utf-8", "surrogatepass");
    char *encoded;
    if (bytes == NULL || PyBytes_AsStringAndSize(bytes, &encoded, &length) < 0) {
        Py_XDECREF(bytes);
        return -1;
    }
    *hash = hash_end(&terms->begun, (const uint8_t *)encoded, (size_t)length);
    Py_DECREF(bytes);
    return 0;
}
