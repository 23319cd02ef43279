/* The least that a call into C can be: one bucket of floats for all keys, the clock, and a tuple. No table, no key, nothing forgotten. */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <time.h>

static double level, stamp;

static PyObject *take(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    if (count != 1 || !PyUnicode_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "take(key)");
        return NULL;
    }
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    double now = (double)clock.tv_sec + (double)clock.tv_nsec * 1e-9, burst = 1e9;
    level -= (now - stamp) * (burst / 60);
    if (level < 0)
        level = 0;
    stamp = now;
    int allowed = level + 1 <= burst;
    if (allowed)
        level += 1;
    PyObject *answer = PyTuple_New(4);
    if (answer == NULL)
        return NULL;
    Py_INCREF(allowed ? Py_True : Py_False);
    PyTuple_SetItem(answer, 0, allowed ? Py_True : Py_False);
    PyTuple_SetItem(answer, 1, PyLong_FromLongLong((long long)(burst - level)));
    PyTuple_SetItem(answer, 2, PyLong_FromLongLong(0));
    PyTuple_SetItem(answer, 3, PyLong_FromLongLong((long long)(now * 1e6)));
    return answer;
}

static PyMethodDef functions[] = {
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL, "take(key)"}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "minimal", NULL, -1, functions,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_minimal(void) { return PyModule_Create(&definition); }
