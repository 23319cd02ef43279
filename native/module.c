/* diana._native: kernels and counters in C. What it offers is typed in src/diana/_native.pyi. */
#include "python.h"

static int intern(PyObject **name, const char *text)
{
    *name = PyUnicode_InternFromString(text);
    return *name == NULL ? -1 : 0;
}

/* setup(decision, cost_error, key_error, terms_of, secret, epoch_offset_us): the classes of Python's side, once. */
static PyObject *setup(PyObject *module, PyObject *args)
{
    struct kit *kit = PyModule_GetState(module);
    PyObject *decision, *cost_error, *key_error, *terms_of;
    const char *secret;
    Py_ssize_t length;
    long long offset;
    if (!PyArg_ParseTuple(args, "O!OOOy#L", &PyType_Type, &decision, &cost_error, &key_error,
                          &terms_of, &secret, &length, &offset))
        return NULL;
    if (length != 16 || !PyType_IsSubtype((PyTypeObject *)decision, &PyTuple_Type)) {
        PyErr_SetString(PyExc_ValueError, "a decision is a tuple, a secret is 16 bytes");
        return NULL;
    }
    if (kit->decision != NULL)
        return ref(Py_None);
    kit->new_decision = (allocfunc)PyType_GetSlot((PyTypeObject *)decision, Py_tp_alloc);
    kit->decision = ref(decision);
    kit->cost_error = ref(cost_error);
    kit->key_error = ref(key_error);
    kit->terms_of = ref(terms_of);
    memcpy(kit->secret, secret, sizeof kit->secret);
    kit->epoch_offset_us = offset;
    return ref(Py_None);
}

static PyObject *over_body(PyObject *body, const char *(*act)(void *, uint64_t))
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(body, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    const char *wrong = act(buffer.buf, (uint64_t)buffer.len);
    PyBuffer_Release(&buffer);
    if (wrong != NULL) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    return ref(Py_None);
}

static PyObject *lay_out(PyObject *module, PyObject *body)
{
    (void)module;
    return over_body(body, zone_lay_out);
}

static PyObject *adopt(PyObject *module, PyObject *body)
{
    (void)module;
    return over_body(body, zone_adopt);
}

/* For tests: the published vectors of the hash. */
static PyObject *siphash(PyObject *module, PyObject *args)
{
    const char *secret, *bytes;
    Py_ssize_t length, size;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#y#", &secret, &length, &bytes, &size))
        return NULL;
    if (length != 16) {
        PyErr_SetString(PyExc_ValueError, "a secret is 16 bytes");
        return NULL;
    }
    struct hash_state state;
    hash_begin(&state, (const uint8_t *)secret);
    struct hash hash = hash_end(&state, (const uint8_t *)bytes, (size_t)size);
    uint8_t found[16];
    for (int i = 0; i < 16; i++)
        found[i] = (uint8_t)(hash.half[i / 8] >> 8 * (i % 8));
    return PyBytes_FromStringAndSize((const char *)found, sizeof found);
}

static PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "The classes of Python's side, once."},
    {"lay_out", lay_out, METH_O, "lay_out(body): a zone in this memory, which is all zeros."},
    {"adopt", adopt, METH_O, "adopt(body): no other process uses the zone; undo what the dead had begun."},
    {"siphash", siphash, METH_VARARGS, "siphash(secret, data): SipHash-2-4 with 128 bits."},
    {NULL, NULL, 0, NULL},
};

static int type_from(PyObject *module, PyTypeObject **type, PyType_Spec *spec, const char *name)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (*type == NULL)
        return -1;
    return name == NULL ? 0 : PyModule_AddObjectRef(module, name, (PyObject *)*type);
}

static int prepare(PyObject *module)
{
    struct kit *kit = PyModule_GetState(module);
    kit->one = PyLong_FromLong(1);
    kit->zero = PyLong_FromLong(0);
    if (kit->one == NULL || kit->zero == NULL || intern(&kit->compiled, "compiled") < 0 ||
        intern(&kit->longest, "longest") < 0 || intern(&kit->key, "key") < 0 ||
        intern(&kit->cost, "cost") < 0 || intern(&kit->now, "now") < 0 ||
        intern(&kit->denied, "denied") < 0 || intern(&kit->charges, "charges") < 0)
        return -1;
    if (type_from(module, &kit->terms, &terms_spec, "Terms") < 0 ||
        type_from(module, &kit->counters, &counters_spec, "Counters") < 0 ||
        type_from(module, &kit->binding, &binding_spec, NULL) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", 1) < 0 ||
        PyModule_AddIntConstant(module, "SHARES", SHARES) < 0 ||
        PyModule_AddIntConstant(module, "SMALLEST", (long)SMALLEST_ZONE) < 0 ||
        PyModule_AddIntConstant(module, "BUCKET", BUCKET) < 0 ||
        PyModule_AddIntConstant(module, "WINDOW", WINDOW) < 0 ||
        PyModule_AddIntConstant(module, "SLIDING", SLIDING) < 0 ||
        PyModule_AddIntConstant(module, "LOG", LOG) < 0 ||
        PyModule_AddIntConstant(module, "NUMBERS", NUMBERS) < 0)
        return -1;
    return 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct kit *kit = PyModule_GetState(module);
    Py_VISIT(kit->decision);
    Py_VISIT(kit->cost_error);
    Py_VISIT(kit->key_error);
    Py_VISIT(kit->terms_of);
    Py_VISIT((PyObject *)kit->terms);
    Py_VISIT((PyObject *)kit->counters);
    Py_VISIT((PyObject *)kit->binding);
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "diana._native",
    .m_doc = "Kernels and counters in C.",
    .m_size = sizeof(struct kit),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
