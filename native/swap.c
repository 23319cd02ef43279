/* Algorithms that have no kernel: Python reads the state, decides, and writes it if it is still what it was. So no lock is ever held
 * while Python runs.
 */
#include "python.h"

static int numbers_from_state(PyObject *state, int64_t *numbers, int64_t *count)
{
    if (state == Py_None) {
        *count = -1;
        return 0;
    }
    Py_ssize_t size = PyTuple_Size(state);
    if (size < 0)
        return -1;
    if (size > MOST_NUMBERS) {
        PyErr_SetString(PyExc_ValueError, "a state in a zone is at most 1,000 numbers");
        return -1;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(state, i));
        if (numbers[i] == -1 && PyErr_Occurred())
            return -1;
    }
    *count = size;
    return 0;
}

static int swap_from(struct counters *c, PyObject *tuple, struct swap *swap)
{
    PyObject *terms, *key, *before, *after;
    long long expires, frees;
    if (!PyArg_ParseTuple(tuple, "O!OOOLL", c->kit->terms, &terms, &key, &before, &after, &expires,
                          &frees))
        return -1;
    swap->terms = (struct terms *)ref(terms);
    swap->expires_us = expires;
    swap->frees_us = frees;
    swap->numbers = PyMem_Malloc(2 * MOST_NUMBERS * sizeof swap->numbers[0]);
    if (swap->numbers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (!is_whole(expires) || !is_whole(frees)) {
        PyErr_SetString(PyExc_OverflowError, "a moment is below 2**53 microseconds");
        return -1;
    }
    if (numbers_from_state(before, swap->numbers, &swap->before) < 0 ||
        numbers_from_state(after, swap->numbers + MOST_NUMBERS, &swap->after) < 0 ||
        terms_hash(c, swap->terms, key, &swap->hash) < 0)
        return -1;
    swap->shard = shard_of(&c->zone, swap->hash);
    return 0;
}

int swaps_from(struct counters *c, PyObject *list, struct swaps *swaps)
{
    Py_ssize_t count = PyList_Size(list);
    if (count < 0)
        return -1;
    swaps->count = 0;
    swaps->one = PyMem_Calloc((size_t)count + 1, sizeof swaps->one[0]);
    if (swaps->one == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; swaps->count < count; swaps->count++) {
        if (swap_from(c, PyList_GetItem(list, swaps->count), &swaps->one[swaps->count]) < 0) {
            swaps->count++;
            swaps_free(swaps);
            return -1;
        }
    }
    return 0;
}

void swaps_free(struct swaps *swaps)
{
    while (swaps->count-- > 0) {
        Py_XDECREF((PyObject *)swaps->one[swaps->count].terms);
        PyMem_Free(swaps->one[swaps->count].numbers);
    }
    PyMem_Free(swaps->one);
}

int swap_is_current(struct table *t, const struct swap *swap)
{
    int64_t numbers[MOST_NUMBERS];
    int64_t count = numbers_read(t, table_find(t, swap->hash), numbers, MOST_NUMBERS);
    if (count != swap->before)
        return 0;
    return count < 0 || memcmp(numbers, swap->numbers, (size_t)count * sizeof numbers[0]) == 0;
}

void swap_write(struct table *t, const struct swap *swap)
{
    if (swap->after < 0)
        return;
    uint32_t slot = table_find(t, swap->hash);
    int is_new = slot == NONE;
    if (is_new)
        slot = table_add(t, swap->hash, swap->terms->owner, swap->terms->limit.horizon_us);
    if (slot == NONE)
        return;
    numbers_write(t, slot, swap->numbers + MOST_NUMBERS, swap->after, swap->expires_us,
                  swap->frees_us);
    if (is_new) {
        age_put(t, slot);
        age_plan(t);
    }
    commit(t);
}

PyObject *counters_swap(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct counters *c = (struct counters *)self;
    struct swaps swaps;
    if (count != 3) {
        PyErr_SetString(PyExc_TypeError, "swap takes charges, swaps and now");
        return NULL;
    }
    if (swaps_from(c, args[1], &swaps) < 0)
        return NULL;
    PyObject *answers = decide_charges(c, args[0], args[2], 0, 1, &swaps);
    swaps_free(&swaps);
    return answers;
}

PyObject *counters_read(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    struct counters *c = (struct counters *)self;
    if (count != 2 || !Py_IS_TYPE(args[0], c->kit->terms)) {
        PyErr_SetString(PyExc_TypeError, "read takes Terms and a key");
        return NULL;
    }
    struct terms *terms = (struct terms *)args[0];
    struct hash hash;
    int64_t numbers[MOST_NUMBERS], found;
    if (terms_hash(c, terms, args[1], &hash) < 0)
        return NULL;
    uint32_t shard = shard_of(&c->zone, hash);
    if (!lock_all(c, UINT64_C(1) << shard))
        return NULL;
    struct table *t = &c->zone.table[shard];
    found = numbers_read(t, table_find(t, hash), numbers, MOST_NUMBERS);
    release_all(c, UINT64_C(1) << shard);
    if (found < 0)
        return ref(Py_None);
    PyObject *state = PyTuple_New((Py_ssize_t)found);
    for (Py_ssize_t i = 0; state != NULL && i < found; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(state, i, number) < 0)
            Py_CLEAR(state);
    }
    return state;
}
