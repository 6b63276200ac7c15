// Preloaded into Triton's stub, this makes a nursery of it. Python, and what stages import, are there before the stub's
// `main`, which runs in each process that is forked; what `main` does to start Python finds it started.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int Main(int, char **, char **);
typedef void Hook(void);

#define NEXT(name) dlsym(RTLD_NEXT, name)

// Of Python's, as far as is needed: the parts of these that are written here are the same since Python 3.8.
typedef struct PyObject PyObject;
typedef struct {
    int type;
    const char *function, *message;
    int status;
} PyStatus;
typedef struct {
    int kind, isolated, use_environment, dev_mode, install_signal_handlers;
} ConfigHead;
typedef union {
    ConfigHead head;
    char room[4096];
    void *aligned;
} Config;

enum { PYTHON_CONFIG = 2, ISOLATED_CONFIG = 3, MAX_ARGUMENTS = 64 };

#pragma weak PyConfig_InitIsolatedConfig
#pragma weak PyConfig_InitPythonConfig
#pragma weak PyConfig_SetBytesArgv
#pragma weak PyConfig_Clear
#pragma weak PyStatus_Exception
#pragma weak PyStatus_Ok
#pragma weak PyRun_SimpleStringFlags
#pragma weak PyImport_ImportModule
#pragma weak PyObject_CallMethod
#pragma weak PyBytes_AsString
#pragma weak PyBytes_Size
#pragma weak PyErr_Print
#pragma weak Py_DecRef
void PyConfig_InitIsolatedConfig(Config *);
void PyConfig_InitPythonConfig(Config *);
PyStatus PyConfig_SetBytesArgv(Config *, ssize_t, char *const *);
void PyConfig_Clear(Config *);
int PyStatus_Exception(PyStatus);
PyStatus PyStatus_Ok(void);
int PyRun_SimpleStringFlags(const char *, void *);
PyObject *PyImport_ImportModule(const char *);
PyObject *PyObject_CallMethod(PyObject *, const char *, const char *, ...);
char *PyBytes_AsString(PyObject *);
ssize_t PyBytes_Size(PyObject *);
void PyErr_Print(void);
void Py_DecRef(PyObject *);

static Main *stub_main;
static ConfigHead prepared;
static bool is_handed_over = true;  // false from the fork until the stub's `main` has asked for Python
static pid_t nursery, tritonserver;

// The nursery ends for good; a process that it has forked leaves the place to its stand-in.
static void give_up(const char *why)
{
    fprintf(stderr, "stubs are not forked: %s\n", why);
    _exit(getpid() == nursery ? UNSUITED : DECLINED);
}

// --- what the stub finds in the place of the system's and Python's own

pid_t getppid(void)
{
    return tritonserver ? tritonserver : (pid_t)syscall(SYS_getppid);
}

static bool is_the_stubs(const void *code)
{
    Dl_info here, stub;
    return dladdr(code, &here) && dladdr((void *)stub_main, &stub) && here.dli_fbase == stub.dli_fbase;
}

int Py_IsInitialized(void)
{
    int (*original)(void) = NEXT("Py_IsInitialized");
    return is_handed_over || !is_the_stubs(__builtin_return_address(0)) ? original() : 0;
}

PyStatus Py_InitializeFromConfig(const Config *config)
{
    PyStatus (*original)(const Config *) = NEXT("Py_InitializeFromConfig");
    if (is_handed_over)
        return original(config);
    is_handed_over = true;
    if (memcmp(&config->head, &prepared, sizeof prepared))
        give_up("this one wants another Python than was prepared");
    return PyStatus_Ok();
}

// --- the nursery

// Whether the program, the first of the objects, has `name` among the names that it is linked by.
static int find(struct dl_phdr_info *program, size_t size, void *name)
{
    (void)size;
    const ElfW(Phdr) *header = program->dlpi_phdr, *end = header + program->dlpi_phnum;
    while (header < end && header->p_type != PT_DYNAMIC)
        header++;
    const char *names = NULL;
    size_t length = 0;
    if (header < end)
        for (const ElfW(Dyn) *entry = (void *)(program->dlpi_addr + header->p_vaddr); entry->d_tag; entry++) {
            if (entry->d_tag == DT_STRTAB)
                names = (const char *)entry->d_un.d_ptr;
            if (entry->d_tag == DT_STRSZ)
                length = entry->d_un.d_val;
        }
    return names && memmem(names, length, name, strlen(name) + 1) ? 1 : -1;
}

static bool is_linked_by(char *name)
{
    return dl_iterate_phdr(find, name) > 0;
}

static void check(PyStatus status)
{
    if (PyStatus_Exception(status))
        give_up(status.message ? status.message : "Python does not start");
}

// As the stub does itself, by the one of two ways that it is linked for.
static void start_python(void)
{
    static Config config;
    if (!PyStatus_Ok || !is_linked_by("Py_InitializeFromConfig"))
        give_up("the stub starts Python in a way that is not known");
    bool is_isolated = is_linked_by("PyConfig_InitIsolatedConfig");
    (is_isolated ? PyConfig_InitIsolatedConfig : PyConfig_InitPythonConfig)(&config);
    const ConfigHead usual = config.head;
    if (usual.kind != (is_isolated ? ISOLATED_CONFIG : PYTHON_CONFIG) || usual.isolated != is_isolated ||
        usual.use_environment == is_isolated || usual.install_signal_handlers == is_isolated)
        give_up("this Python's configuration is not known");
    config.head.install_signal_handlers = 1;
    check(PyConfig_SetBytesArgv(&config, 0, NULL));
    prepared = config.head;
    check(Py_InitializeFromConfig(&config));
    PyConfig_Clear(&config);
}

// Returns in each process that is forked, with what it was given: see stages/nursery.py.
static PyObject *forked(const char *directory)
{
    // As in a stub: the working directory, where the launcher has put this package, comes first.
    PyRun_SimpleStringFlags("import sys; sys.path.insert(0, '')", NULL);
    PyObject *module = PyImport_ImportModule("sie_triton.stages.nursery");
    PyObject *given = module ? PyObject_CallMethod(module, "serve", "s", directory) : NULL;
    if (!given) {
        PyErr_Print();
        give_up("Python's part failed");
    }
    Py_DecRef(module);
    return given;
}

static int nursery_main(int argc, char **argv, char **environment)
{
    (void)environment;
    nursery = getpid();
    if (argc != 2)
        give_up("no directory was given");
    // The stub's file may be there to be run and not to be read, which hides its processes from their own user.
    prctl(PR_SET_DUMPABLE, 1);
    start_python();
    PyObject *given = forked(argv[1]);
    char *text = PyBytes_AsString(given), *end = text + PyBytes_Size(given);
    tritonserver = atoi(text);
    static char *arguments[MAX_ARGUMENTS];
    int count = 0;
    for (text += strlen(text) + 1; text < end && count < MAX_ARGUMENTS - 1; text += strlen(text) + 1)
        arguments[count++] = text;
    is_handed_over = false;
    return stub_main(count, arguments, environ);
}

int __libc_start_main(Main *main, int argc, char **argv, Hook *init, Hook *fini, Hook *end, void *stack)
{
    int (*original)(Main *, int, char **, Hook *, Hook *, Hook *, void *) = NEXT("__libc_start_main");
    stub_main = main;
    return original(nursery_main, argc, argv, init, fini, end, stack);
}
