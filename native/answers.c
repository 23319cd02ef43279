/* From outcomes to Decisions, and from Python's numbers to ours. */
#include "python.h"

#include <time.h>

/* Steals the value; whether that worked. */
static inline int put(PyObject *tuple, Py_ssize_t place, PyObject *value)
{
    return PyTuple_SetItem(tuple, place, value) == 0;
}

PyObject *decision_from(struct kit *kit, const struct outcome *o, PyObject *most, PyObject *key,
                        PyObject *cost, PyObject *at)
{
    PyObject *remaining = PyLong_FromLongLong(o->remaining);
    PyObject *retry = o->retry_us ? PyLong_FromLongLong(o->retry_us) : ref(kit->zero);
    PyObject *reset = PyLong_FromLongLong(o->reset_us);
    PyObject *delay = o->delay_us ? PyLong_FromLongLong(o->delay_us) : ref(kit->zero);
    PyObject *outcome = NULL, *decision = NULL;
    if (remaining != NULL && retry != NULL && reset != NULL && delay != NULL)
        outcome = PyTuple_Pack(5, o->allowed ? Py_True : Py_False, remaining, retry, reset, delay);
    Py_XDECREF(remaining);
    Py_XDECREF(retry);
    Py_XDECREF(reset);
    Py_XDECREF(delay);
    if (outcome == NULL)
        return NULL;
    /* As tuple.__new__ does it, but for the copy. */
    decision = kit->new_decision((PyTypeObject *)kit->decision, 6);
    if (decision == NULL) {
        Py_DECREF(outcome);
        return NULL;
    }
    if (!put(decision, 0, outcome) || !put(decision, 1, ref(most)) || !put(decision, 2, ref(key)) ||
        !put(decision, 3, ref(cost)) || !put(decision, 4, ref(at)) ||
        !put(decision, 5, ref(Py_False)))
        Py_CLEAR(decision);
    return decision;
}

int cost_from(struct kit *kit, PyObject *object, int64_t *cost)
{
    if (object == kit->one) {
        *cost = 1;
        return 0;
    }
    if (PyLong_CheckExact(object)) {
        int overflow;
        *cost = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (!overflow && *cost >= 0 && *cost < WHOLE)
            return 0;
    }
    PyObject *error = PyObject_CallFunctionObjArgs(kit->cost_error, object, NULL);
    if (error != NULL) {
        PyErr_SetObject(kit->cost_error, error);
        Py_DECREF(error);
    }
    return -1;
}

int moment_from(PyObject *object, int64_t *moment)
{
    if (!PyLong_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a moment is whole microseconds (int)");
        return -1;
    }
    int overflow;
    *moment = PyLong_AsLongLongAndOverflow(object, &overflow);
    /* Half of what is whole: a year is less than 2**45 us. */
    if (overflow || *moment <= -WHOLE / 2 || *moment >= WHOLE / 2) {
        PyErr_SetString(PyExc_OverflowError, "a moment is below 2**52 microseconds");
        return -1;
    }
    return 0;
}

int64_t counters_now(const struct counters *c)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + c->zone.epoch_offset_us;
}
