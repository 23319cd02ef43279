/* What the files that know Python share. */
#ifndef DIANA_PYTHON_H
#define DIANA_PYTHON_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "zone.h"

#ifdef Py_GIL_DISABLED
#error "Diana's tables in private memory rely on the interpreter's lock; build without the extension"
#endif

/* Py_NewRef is a call in the stable ABI; this is not. */
static inline PyObject *ref(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

/* Of one interpreter: each has its own classes. */
struct kit {
    PyObject *decision, *cost_error, *key_error; /* classes of diana.core */
    PyObject *terms_of;                          /* terms_of(meter) -> Terms, or None: no kernel decides like it */
    allocfunc new_decision;
    PyTypeObject *terms, *counters, *binding;
    PyObject *one, *zero, *compiled, *family, *longest, *key, *cost, *now, *denied, *charges; /* numbers and names */
    uint8_t secret[16]; /* of all tables in private memory */
    int64_t epoch_offset_us;
};

/* A CounterSpec, made ready. */
struct terms {
    PyObject_HEAD
    struct limit limit;
    PyObject *id, *most; /* its id; the most that can pass in one instant */
    PyObject *family, *longest_of;
    /* For the secret that it was asked under last: where the hash of its keys begins, and what its owner is called. */
    uint8_t secret[16];
    int is_hashed;
    struct hash_state begun;
    struct hash owner;
};

struct counters {
    PyObject_HEAD
    struct kit *kit;
    struct zone zone;
    Py_buffer body; /* of a shared zone */
    int has_body;
};

/* What a builtin function holds on to: a limit and a clock, or who decides otherwise. */
struct binding {
    PyObject_HEAD
    struct counters *counters;
    struct terms *terms;
    PyObject *other; /* the clock, or the other way; NULL if there is none */
};

struct charge {
    struct terms *terms;   /* borrowed: see decide.c */
    PyObject *key, *price; /* borrowed */
    int64_t cost;
    struct hash hash;
    uint32_t shard;
    struct finding found;
};

/* A state of an algorithm that has no kernel: written if it is still what it was. swap.c */
#define MOST_NUMBERS 1000
struct swap {
    struct terms *terms; /* ours to let go */
    struct hash hash;
    uint32_t shard;
    int64_t before, after; /* how many numbers; -1: none */
    int64_t *numbers;      /* those before, then those after */
    int64_t expires_us, frees_us;
};
struct swaps {
    Py_ssize_t count;
    struct swap *one;
};
int swaps_from(struct counters *c, PyObject *list, struct swaps *swaps);
void swaps_free(struct swaps *swaps);
int swap_is_current(struct table *t, const struct swap *swap);
void swap_write(struct table *t, const struct swap *swap);

/* terms.c */
extern PyType_Spec terms_spec;
/* A new reference to a meter's terms; None: no kernel; NULL: an exception. */
PyObject *terms_of_meter(struct kit *kit, PyObject *meter);
/* Hash a key under a limit; -1 with an exception if it is no key. */
int terms_hash(struct counters *c, struct terms *terms, PyObject *key, struct hash *hash);

/* answers.c */
PyObject *decision_from(struct kit *kit, const struct outcome *outcome, PyObject *most, PyObject *key,
                        PyObject *cost, PyObject *at);
/* -1 with an exception. */
int cost_from(struct kit *kit, PyObject *object, int64_t *cost);
int moment_from(PyObject *object, int64_t *moment);
int64_t counters_now(const struct counters *c);

/* counters.c */
extern PyType_Spec counters_spec, binding_spec;
struct binding *binding_new(struct counters *c, PyObject *terms, PyObject *other);

/* decide.c */
PyObject *take(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *counters_decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *counters_peek(PyObject *self, PyObject *const *args, Py_ssize_t count);
/* Whether all are locked; else an exception, and none is. */
PyObject *decide_charges(struct counters *c, PyObject *asked, PyObject *moment, int denied_elsewhere,
                         int writes, const struct swaps *swaps);
int lock_all(struct counters *c, uint64_t shards);
void release_all(struct counters *c, uint64_t shards);

/* swap.c */
PyObject *counters_read(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *counters_swap(PyObject *self, PyObject *const *args, Py_ssize_t count);

#endif
